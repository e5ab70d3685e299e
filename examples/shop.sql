-- A shop: revenue per category as it grows, and closed minutes of orders as a topic.
--
--     penstock run examples/shop.sql
--     penstock test examples/shop.sql

CREATE TABLE products (id BIGINT PRIMARY KEY, name STRING NOT NULL, category STRING NOT NULL);

CREATE STREAM orders (id BIGINT NOT NULL, product_id BIGINT NOT NULL, quantity BIGINT NOT NULL,
                      price DECIMAL(9, 2) NOT NULL, at TIMESTAMP NOT NULL,
                      WATERMARK FOR at AS at - INTERVAL 10 SECONDS);

CREATE VIEW lines AS
  SELECT orders.id, orders.quantity * orders.price AS amount, products.name, products.category
  FROM orders JOIN products ON products.id = orders.product_id;

-- What each category has brought in; a product that moves takes its orders along.
CREATE MATERIALIZED VIEW revenue AS
  SELECT category, count(*) AS orders, sum(amount) AS revenue
  FROM lines GROUP BY category;

-- The two products of each category that sell best.
CREATE MATERIALIZED VIEW best_sellers AS
  SELECT category, name, revenue, place
  FROM (
    SELECT category, name, sum(amount) AS revenue,
           row_number() OVER (PARTITION BY category ORDER BY sum(amount) DESC) AS place
    FROM lines GROUP BY category, name
  )
  WHERE place <= 2;

CREATE SINK orders_per_minute INTO 'orders-per-minute' AS
  SELECT window_start, count(*) AS orders, sum(quantity) AS items
  FROM TUMBLE(orders, at, INTERVAL 1 MINUTE) GROUP BY window_start
  EMIT ON CLOSE;
