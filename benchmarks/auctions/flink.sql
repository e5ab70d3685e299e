-- Nexmark as Flink SQL, after nexmark-flink, over a topic for each kind of event. Averages are of doubles.

-- q0
SELECT auction, bidder, price, `dateTime`, extra
FROM bid;

-- q1
SELECT auction, bidder, `dateTime`, extra, 0.908 * price AS price
FROM bid;

-- q2
SELECT auction, price
FROM bid
WHERE MOD(auction, 123) = 0;

-- q3
SELECT P.name, P.city, P.state, A.id AS auction
FROM auction A
JOIN person P
ON A.seller = P.id
WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA');

-- q4
SELECT category, AVG(CAST(final AS DOUBLE)) AS average
FROM (SELECT MAX(B.price) AS final, A.category
FROM auction A, bid B
WHERE A.id = B.auction AND B.rt BETWEEN A.rt AND A.ends
GROUP BY A.id, A.category)
GROUP BY category;

-- q5
SELECT A.starts AS window_start, A.auction, A.num
FROM (SELECT auction, count(*) AS num, window_start AS starts, window_end AS ends
FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rt), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
GROUP BY auction, window_start, window_end) A
JOIN (SELECT max(num) AS maxn, starts, ends
FROM (SELECT count(*) AS num, window_start AS starts, window_end AS ends
FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rt), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
GROUP BY auction, window_start, window_end)
GROUP BY starts, ends) M
ON A.starts = M.starts AND A.ends = M.ends AND A.num >= M.maxn;

-- q7
SELECT B.auction, B.price, B.bidder, B.`dateTime`
FROM bid B
JOIN (SELECT MAX(price) AS maxprice, window_time AS wt
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rt), INTERVAL '10' SECOND))
GROUP BY window_start, window_end, window_time) M
ON B.price = M.maxprice
WHERE B.rt BETWEEN M.wt - INTERVAL '10' SECOND AND M.wt AND B.auction > 0 AND B.rt > M.wt - INTERVAL '10' SECOND;

-- q8
SELECT P.id, P.name, P.starts AS window_start
FROM (SELECT id, name, window_start AS starts, window_end AS ends
FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(rt), INTERVAL '10' SECOND))
GROUP BY id, name, window_start, window_end) P
JOIN (SELECT seller, window_start AS starts, window_end AS ends
FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(rt), INTERVAL '10' SECOND))
GROUP BY seller, window_start, window_end) A
ON P.id = A.seller AND P.starts = A.starts AND P.ends = A.ends;

-- q9
SELECT id AS auction, price, `dateTime`
FROM (SELECT A.id, B.price, B.`dateTime`, ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.rt ASC) AS n
FROM auction A, bid B
WHERE A.id = B.auction AND B.rt BETWEEN A.rt AND A.ends)
WHERE n <= 1;

-- q10
SELECT auction, bidder, price, `dateTime`, extra, DATE_FORMAT(rt, 'yyyy-MM-dd') AS dt, DATE_FORMAT(rt, 'HH:mm') AS hm
FROM bid;

-- q11
SELECT window_start, window_end, bidder, count(*) AS n
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(rt), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end;

-- q12
SELECT window_start, window_end, bidder, count(*) AS n
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(pt), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end;

-- q13
SELECT B.auction, B.bidder, B.price, B.`dateTime`, S.`value`
FROM bid B
JOIN side S
ON MOD(B.auction, 10000) = S.`key`;

-- q14
SELECT auction, bidder, 0.908 * price AS price, `dateTime`, CASE WHEN HOUR(rt) BETWEEN 8 AND 18 THEN 'dayTime' WHEN HOUR(rt) <= 6 OR HOUR(rt) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS kind, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS letters
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;

-- q15
SELECT DATE_FORMAT(rt, 'yyyy-MM-dd') AS `day`, COUNT(*) AS bids, COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids, COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids, COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids, COUNT(DISTINCT bidder) AS bidders, COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders, COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders, COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders, COUNT(DISTINCT auction) AS auctions, COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions, COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions, COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY DATE_FORMAT(rt, 'yyyy-MM-dd');

-- q16
SELECT channel, DATE_FORMAT(rt, 'yyyy-MM-dd') AS `day`, COUNT(*) AS bids, COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids, COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids, COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids, COUNT(DISTINCT bidder) AS bidders, COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders, COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders, COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders, COUNT(DISTINCT auction) AS auctions, COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions, COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions, COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY channel, DATE_FORMAT(rt, 'yyyy-MM-dd');

-- q17
SELECT auction, DATE_FORMAT(rt, 'yyyy-MM-dd') AS `day`, count(*) AS bids, count(*) FILTER (WHERE price < 10000) AS rank1_bids, count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids, count(*) FILTER (WHERE price >= 1000000) AS rank3_bids, min(price) AS least, max(price) AS most, avg(CAST(price AS DOUBLE)) AS average, sum(price) AS total
FROM bid
GROUP BY auction, DATE_FORMAT(rt, 'yyyy-MM-dd');

-- q18
SELECT bidder, auction, `dateTime`
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY rt DESC) AS n
FROM bid)
WHERE n <= 1;

-- q19
SELECT auction, price
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS n
FROM bid)
WHERE n <= 10;

-- q20
SELECT B.auction, B.bidder, B.price, B.`dateTime`, A.itemName, A.initialBid, A.seller, A.`dateTime` AS opened
FROM bid B
JOIN auction A
ON B.auction = A.id
WHERE A.category = 10;

-- q21
SELECT *
FROM (SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM bid)
WHERE channel_id IS NOT NULL AND channel_id <> '';

-- q22
SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3
FROM bid;
