-- Behind refusal.lua. KEYS: rows. ARGV: head, first element, last element. Writes nothing.
return refusal(redis.call('LRANGE', KEYS[1], ARGV[2], ARGV[3]), cjson.decode(ARGV[1])) or ''
