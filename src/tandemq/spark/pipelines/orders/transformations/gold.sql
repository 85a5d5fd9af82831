-- Gold. Events that are later than 10 minutes are in silver and in gold_customers only.

-- A minute is there once the watermark has passed it, and never changes then.
CREATE STREAMING TABLE gold_minutes AS
SELECT window.start AS minute, count(*) AS orders, sum(cents) AS cents
FROM STREAM silver_orders WATERMARK at DELAY OF INTERVAL 10 MINUTES
GROUP BY window(at, '1 minute');

-- Payments with their orders, in time.
CREATE STREAMING TABLE gold_payments AS
SELECT o.order, o.customer, o.at AS orderedAt, p.payment, p.cents, p.at AS paidAt
FROM STREAM silver_orders WATERMARK at DELAY OF INTERVAL 10 MINUTES AS o
JOIN STREAM silver_payments WATERMARK at DELAY OF INTERVAL 10 MINUTES AS p
ON p.order = o.order AND p.at >= o.at AND p.at <= o.at + INTERVAL 15 MINUTES;

-- Orders without payment in time, once the watermark has passed their deadline: the rows of an outer join without partner.
CREATE STREAMING TABLE gold_unpaid AS
SELECT order, customer, cents, orderedAt + INTERVAL 15 MINUTES AS deadline
FROM (
    SELECT o.order, o.customer, o.cents, o.at AS orderedAt, p.payment
    FROM STREAM silver_orders WATERMARK at DELAY OF INTERVAL 10 MINUTES AS o
    LEFT JOIN STREAM silver_payments WATERMARK at DELAY OF INTERVAL 10 MINUTES AS p
    ON p.order = o.order AND p.at >= o.at AND p.at <= o.at + INTERVAL 15 MINUTES
)
WHERE payment IS NULL;

-- Computed again at each run, however late an order is.
CREATE MATERIALIZED VIEW gold_customers AS
SELECT customer, count(*) AS orders, sum(cents) AS cents FROM silver_orders GROUP BY customer;
