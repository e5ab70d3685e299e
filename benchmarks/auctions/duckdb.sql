-- Nexmark over the tables person, auction and bid, all events at once (DuckDB). What these give, a side must give.

-- q0
SELECT
  auction,
  bidder,
  price,
  dateTime,
  extra
FROM bid;

-- q1
SELECT
  auction,
  bidder,
  dateTime,
  extra,
  0.908 * price AS price
FROM bid;

-- q2
SELECT
  auction,
  price
FROM bid
WHERE
  auction % 123 = 0;

-- q3
SELECT
  p.name,
  p.city,
  p.state,
  a.id AS auction
FROM auction AS a
JOIN person AS p
  ON a.seller = p.id
WHERE
  a.category = 10 AND p.state IN ('OR', 'ID', 'CA');

-- q4
SELECT
  category,
  AVG(final) AS average
FROM (
  SELECT
    a.id,
    a.category,
    MAX(b.price) AS final
  FROM bid AS b
  JOIN auction AS a
    ON b.auction = a.id AND b.dateTime BETWEEN a.dateTime AND a.expires
  GROUP BY ALL
)
GROUP BY ALL;

-- q5
WITH counts AS (
  SELECT
    TIME_BUCKET(INTERVAL '2' SECOND, dateTime) - INTERVAL '2' SECOND * hop AS window_start,
    auction,
    COUNT(*) AS num
  FROM bid, RANGE(0, 5) AS hops(hop)
  GROUP BY ALL
)
SELECT
  window_start,
  auction,
  num
FROM counts
QUALIFY
  num = MAX(num) OVER (PARTITION BY window_start);

-- q6
WITH winning AS (
  SELECT
    a.id,
    a.seller,
    b.price AS final,
    b.dateTime
  FROM bid AS b
  JOIN auction AS a
    ON b.auction = a.id AND b.dateTime BETWEEN a.dateTime AND a.expires
  QUALIFY
    ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime) = 1
)
SELECT
  seller,
  AVG(final) OVER (
    PARTITION BY seller
    ORDER BY dateTime, id
    ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
  ) AS average
FROM winning;

-- q7
SELECT
  auction,
  price,
  bidder,
  dateTime
FROM bid
WHERE
  auction > 0
QUALIFY
  price = MAX(price) OVER (PARTITION BY TIME_BUCKET(INTERVAL '10' SECOND, dateTime));

-- q8
SELECT DISTINCT
  p.id,
  p.name,
  p.w AS window_start
FROM (
  SELECT
    *,
    TIME_BUCKET(INTERVAL '10' SECOND, dateTime) AS w
  FROM person
) AS p
JOIN (
  SELECT
    *,
    TIME_BUCKET(INTERVAL '10' SECOND, dateTime) AS w
  FROM auction
) AS a
  ON p.id = a.seller AND p.w = a.w;

-- q9
SELECT
  auction,
  price,
  dateTime
FROM (
  SELECT
    b.*
  FROM bid AS b
  JOIN auction AS a
    ON b.auction = a.id AND b.dateTime BETWEEN a.dateTime AND a.expires
)
QUALIFY
  ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) = 1;

-- q10
SELECT
  auction,
  bidder,
  price,
  dateTime,
  extra,
  STRFTIME(dateTime, '%Y-%m-%d') AS dt,
  STRFTIME(dateTime, '%H:%M') AS hm
FROM bid;

-- q11
WITH gaps AS (
  SELECT
    *,
    CAST(COALESCE(dateTime - LAG(dateTime) OVER w >= INTERVAL '10' SECOND, TRUE) AS INT) AS first
  FROM bid
  WINDOW w AS (PARTITION BY bidder ORDER BY dateTime)
), numbered AS (
  SELECT
    *,
    SUM(first) OVER (
      PARTITION BY bidder
      ORDER BY dateTime
      RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS n
  FROM gaps
)
SELECT
  MIN(dateTime) AS window_start,
  MAX(dateTime) + INTERVAL '10' SECOND AS window_end,
  bidder,
  COUNT(*) AS n
FROM numbered
GROUP BY
  bidder,
  numbered.n;

-- q12
SELECT
  bidder,
  COUNT(*) AS n
FROM bid
GROUP BY ALL;

-- q13
SELECT
  auction,
  bidder,
  price,
  dateTime,
  'value ' || (
    auction % 10000
  ) AS value
FROM bid
WHERE
  auction > 0;

-- q14
SELECT
  auction,
  bidder,
  0.908 * price AS price,
  dateTime,
  CASE
    WHEN HOUR(dateTime) BETWEEN 8 AND 18
    THEN 'dayTime'
    WHEN HOUR(dateTime) <= 6 OR HOUR(dateTime) >= 20
    THEN 'nightTime'
    ELSE 'otherTime'
  END AS kind,
  LENGTH(extra) - LENGTH(REPLACE(extra, 'c', '')) AS letters
FROM bid
WHERE
  0.908 * price > 1000000 AND 0.908 * price < 50000000;

-- q15
SELECT
  STRFTIME(dateTime, '%Y-%m-%d') AS day,
  COUNT(*) AS bids,
  COUNT(*) FILTER(WHERE
    price < 10000) AS rank1_bids,
  COUNT(*) FILTER(WHERE
    price >= 10000 AND price < 1000000) AS rank2_bids,
  COUNT(*) FILTER(WHERE
    price >= 1000000) AS rank3_bids,
  COUNT(DISTINCT bidder) AS bidders,
  COUNT(DISTINCT bidder) FILTER(WHERE
    price < 10000) AS rank1_bidders,
  COUNT(DISTINCT bidder) FILTER(WHERE
    price >= 10000 AND price < 1000000) AS rank2_bidders,
  COUNT(DISTINCT bidder) FILTER(WHERE
    price >= 1000000) AS rank3_bidders,
  COUNT(DISTINCT auction) AS auctions,
  COUNT(DISTINCT auction) FILTER(WHERE
    price < 10000) AS rank1_auctions,
  COUNT(DISTINCT auction) FILTER(WHERE
    price >= 10000 AND price < 1000000) AS rank2_auctions,
  COUNT(DISTINCT auction) FILTER(WHERE
    price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY ALL;

-- q16
SELECT
  channel,
  STRFTIME(dateTime, '%Y-%m-%d') AS day,
  COUNT(*) AS bids,
  COUNT(*) FILTER(WHERE
    price < 10000) AS rank1_bids,
  COUNT(*) FILTER(WHERE
    price >= 10000 AND price < 1000000) AS rank2_bids,
  COUNT(*) FILTER(WHERE
    price >= 1000000) AS rank3_bids,
  COUNT(DISTINCT bidder) AS bidders,
  COUNT(DISTINCT bidder) FILTER(WHERE
    price < 10000) AS rank1_bidders,
  COUNT(DISTINCT bidder) FILTER(WHERE
    price >= 10000 AND price < 1000000) AS rank2_bidders,
  COUNT(DISTINCT bidder) FILTER(WHERE
    price >= 1000000) AS rank3_bidders,
  COUNT(DISTINCT auction) AS auctions,
  COUNT(DISTINCT auction) FILTER(WHERE
    price < 10000) AS rank1_auctions,
  COUNT(DISTINCT auction) FILTER(WHERE
    price >= 10000 AND price < 1000000) AS rank2_auctions,
  COUNT(DISTINCT auction) FILTER(WHERE
    price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY ALL;

-- q17
SELECT
  auction,
  STRFTIME(dateTime, '%Y-%m-%d') AS day,
  COUNT(*) AS bids,
  COUNT(*) FILTER(WHERE
    price < 10000) AS rank1_bids,
  COUNT(*) FILTER(WHERE
    price >= 10000 AND price < 1000000) AS rank2_bids,
  COUNT(*) FILTER(WHERE
    price >= 1000000) AS rank3_bids,
  MIN(price) AS least,
  MAX(price) AS most,
  AVG(price) AS average,
  CAST(SUM(price) AS BIGINT) AS total
FROM bid
GROUP BY ALL;

-- q18
SELECT
  bidder,
  auction,
  MAX(dateTime) AS dateTime
FROM bid
GROUP BY ALL;

-- q19
SELECT
  auction,
  price
FROM bid
QUALIFY
  ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) <= 10;

-- q20
SELECT
  b.auction,
  b.bidder,
  b.price,
  b.dateTime,
  a.itemName,
  a.initialBid,
  a.seller,
  a.dateTime AS opened
FROM bid AS b
JOIN auction AS a
  ON b.auction = a.id
WHERE
  a.category = 10;

-- q21
SELECT
  auction,
  bidder,
  price,
  channel,
  CASE LOWER(channel)
    WHEN 'apple'
    THEN '0'
    WHEN 'google'
    THEN '1'
    WHEN 'facebook'
    THEN '2'
    WHEN 'baidu'
    THEN '3'
    ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)
  END AS channel_id
FROM bid
WHERE
  channel_id <> '';

-- q22
SELECT
  auction,
  bidder,
  price,
  channel,
  SPLIT_PART(url, '/', 4) AS dir1,
  SPLIT_PART(url, '/', 5) AS dir2,
  SPLIT_PART(url, '/', 6) AS dir3
FROM bid;
