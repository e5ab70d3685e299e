-- Home timelines of a social network: for each user the posts of those whom they follow, newest first.
-- The query is that of Kleppmann, Designing Data-Intensive Applications, chapter 11.
--
--     penstock run examples/timeline.sql
--     penstock test examples/timeline.sql

CREATE STREAM tweets (id BIGINT, sender_id BIGINT, text STRING, timestamp TIMESTAMP,
                      WATERMARK FOR timestamp AS timestamp - INTERVAL 10 SECONDS);

-- Who follows whom; a deletion of the row (a record without a value) is an unfollow.
CREATE TABLE follows (follower_id BIGINT, followee_id BIGINT,
                      PRIMARY KEY (follower_id, followee_id));

CREATE MATERIALIZED VIEW timelines AS
  SELECT follows.follower_id AS timeline_id,
         array_agg(tweets.* ORDER BY tweets.timestamp DESC) AS tweets
  FROM tweets
  JOIN follows ON follows.followee_id = tweets.sender_id
  GROUP BY follows.follower_id;
