-- KEYS: open, rows. ARGV: name, head.
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('RPUSH', KEYS[2], '')
