-- KEYS: open, begun, then the rows of each. ARGV: their names. A writer whose commit has begun stays: it is decided.
local aborted = 0
for n, name in ipairs(ARGV) do
  if redis.call('HEXISTS', KEYS[2], name) == 0 and redis.call('HDEL', KEYS[1], name) == 1 then
    redis.call('UNLINK', KEYS[2 + n])
    aborted = aborted + 1
  end
end
return aborted
