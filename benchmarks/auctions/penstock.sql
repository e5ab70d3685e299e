-- Nexmark's queries as Penstock's SQL, over the streams person, auction and bid and the table side.

-- q0
SELECT auction, bidder, price, dateTime, extra FROM bid;

-- q1
SELECT auction, bidder, dateTime, extra, 0.908 * price AS price FROM bid;

-- q2
SELECT auction, price FROM bid WHERE auction % 123 = 0;

-- q3
SELECT p.name, p.city, p.state, a.id AS auction
FROM auction AS a JOIN person AS p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');

-- q4
SELECT category, avg(final) AS average
FROM (
  SELECT max(b.price) AS final, a.category
  FROM auction AS a, bid AS b
  WHERE a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
  GROUP BY a.id, a.category)
GROUP BY category;

-- q5
WITH counts AS (
  SELECT window_start, auction, count(*) AS num
  FROM HOP(bid, dateTime, INTERVAL 2 SECONDS, INTERVAL 10 SECONDS)
  GROUP BY window_start, window_end, auction
), most AS (
  SELECT window_start, max(num) AS num FROM counts GROUP BY window_start
)
SELECT counts.window_start, auction, counts.num
FROM counts JOIN most ON counts.window_start = most.window_start AND counts.num = most.num;

-- q6
SELECT seller, avg(final) OVER (
    PARTITION BY seller ORDER BY dateTime, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS average
FROM (
  SELECT DISTINCT ON (a.id) a.id, a.seller, b.price AS final, b.dateTime
  FROM auction AS a, bid AS b
  WHERE a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
  ORDER BY b.price DESC, b.dateTime);

-- q7
-- The last events, which only move time, are of auction -1.
WITH highest AS (
  SELECT window_start, window_end, max(price) AS most
  FROM TUMBLE(bid, dateTime, INTERVAL 10 SECONDS)
  GROUP BY window_start, window_end
)
SELECT b.auction, b.price, b.bidder, b.dateTime
FROM bid AS b JOIN highest AS h
  ON b.price = h.most AND b.dateTime >= h.window_start AND b.dateTime < h.window_end
WHERE b.auction > 0;

-- q8
WITH people AS (
  SELECT id, name, window_start
  FROM TUMBLE(person, dateTime, INTERVAL 10 SECONDS)
  GROUP BY id, name, window_start, window_end
), sellers AS (
  SELECT seller, window_start
  FROM TUMBLE(auction, dateTime, INTERVAL 10 SECONDS)
  GROUP BY seller, window_start, window_end
)
SELECT id, name, people.window_start
FROM people JOIN sellers ON id = seller AND people.window_start = sellers.window_start;

-- q9
SELECT DISTINCT ON (b.auction) b.auction, b.price, b.dateTime
FROM auction AS a, bid AS b
WHERE a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
ORDER BY b.price DESC, b.dateTime;

-- q10
SELECT auction, bidder, price, dateTime, extra,
  strftime(dateTime, '%Y-%m-%d') AS dt, strftime(dateTime, '%H:%M') AS hm
FROM bid;

-- q11
SELECT window_start, window_end, bidder, count(*) AS n
FROM SESSION(bid, dateTime, INTERVAL 10 SECONDS)
GROUP BY bidder, window_start, window_end;

-- q12
SELECT window_start, window_end, bidder, count(*) AS n
FROM TUMBLE(bid, INTERVAL 10 SECONDS)
GROUP BY bidder, window_start, window_end;

-- q13
SELECT b.auction, b.bidder, b.price, b.dateTime, side.value
FROM bid AS b JOIN side ON b.auction % 10000 = side.key;

-- q14
SELECT auction, bidder, 0.908 * price AS price, dateTime,
  CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
    WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS kind,
  length(extra) - length(replace(extra, 'c', '')) AS letters
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;

-- q15
SELECT strftime(dateTime, '%Y-%m-%d') AS day, count(*) AS bids,
  count(*) FILTER (WHERE price < 10000) AS rank1_bids,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  count(DISTINCT bidder) AS bidders,
  count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
  count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
  count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
  count(DISTINCT auction) AS auctions,
  count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
  count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
  count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY day;

-- q16
SELECT channel, strftime(dateTime, '%Y-%m-%d') AS day, count(*) AS bids,
  count(*) FILTER (WHERE price < 10000) AS rank1_bids,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  count(DISTINCT bidder) AS bidders,
  count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
  count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
  count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
  count(DISTINCT auction) AS auctions,
  count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
  count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
  count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY channel, day;

-- q17
SELECT auction, strftime(dateTime, '%Y-%m-%d') AS day, count(*) AS bids,
  count(*) FILTER (WHERE price < 10000) AS rank1_bids,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  min(price) AS least, max(price) AS most, avg(price) AS average, sum(price) AS total
FROM bid
GROUP BY auction, day;

-- q18
SELECT DISTINCT ON (bidder, auction) bidder, auction, dateTime FROM bid ORDER BY dateTime DESC;

-- q19
SELECT auction, price
FROM bid
QUALIFY row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime, bidder) <= 10;

-- q20
SELECT b.auction, b.bidder, b.price, b.dateTime, a.itemName, a.initialBid, a.seller, a.dateTime AS opened
FROM bid AS b JOIN auction AS a ON b.auction = a.id
WHERE a.category = 10;

-- q21
SELECT auction, bidder, price, channel,
  CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
    WHEN 'baidu' THEN '3' ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM bid
WHERE channel_id <> '';

-- q22
SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
  split_part(url, '/', 6) AS dir3
FROM bid;
