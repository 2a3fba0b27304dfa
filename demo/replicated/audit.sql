-- At one replica: name of a check, and whose it is wrong for. Told: the orders that customers were told of.
WITH told (id, item, copies) AS (
	SELECT * FROM unnest(%(ids)s::uuid[], %(items)s::int[], %(copies)s::int[])
)
SELECT 'every order that a customer was told of is there, as it was placed' AS check,
	(SELECT count(*) FROM told t LEFT JOIN orders o USING (id, item, copies) WHERE o.id IS NULL) AS wrong
UNION ALL
SELECT 'no order is there that no customer knows of',
	(SELECT count(*) FROM orders o LEFT JOIN told t USING (id) WHERE t.id IS NULL)
UNION ALL
SELECT 'every copy has been taken from the stock once: no update is lost',
	(SELECT count(*) FROM item i
		WHERE i.stock <> 100000 - (SELECT coalesce(sum(o.copies), 0) FROM orders o WHERE o.item = i.id))
UNION ALL
SELECT 'every order is of an item that there is',
	(SELECT count(*) FROM orders o LEFT JOIN item i ON i.id = o.item WHERE i.id IS NULL)
