-- Views of events and of a table, all of which change what they have written.

CREATE STREAM events (user STRING NOT NULL, page STRING, v BIGINT NOT NULL, at TIMESTAMP NOT NULL,
                      WATERMARK FOR at AS at - INTERVAL 2 SECONDS)
  WITH (key = 'user', partitions = 2, idle = '1 hour');

CREATE TABLE prices (page STRING PRIMARY KEY, price BIGINT NOT NULL);

CREATE VIEW totals AS
  SELECT page, user, count(*) AS n, sum(v) AS total FROM events GROUP BY page, user;

CREATE MATERIALIZED VIEW per_user AS
  SELECT user, window_start, count(*) AS n, min(v) AS low
  FROM TUMBLE(events, at, INTERVAL 10 SECONDS) GROUP BY user, window_start;

CREATE MATERIALIZED VIEW priced AS
  SELECT p.page, p.price, t.user, t.n * p.price AS paid
  FROM prices AS p LEFT JOIN totals AS t ON t.page = p.page AND t.total > 1000;

CREATE MATERIALIZED VIEW leaders AS
  SELECT page, user, total, row_number() OVER (PARTITION BY page ORDER BY total DESC, user) AS place
  FROM totals QUALIFY place <= 3;

CREATE MATERIALIZED VIEW frequent AS
  SELECT user, sum(n) AS n FROM totals GROUP BY user
  HAVING sum(n) > (SELECT avg(n) FROM (SELECT sum(n) AS n FROM totals GROUP BY user));
