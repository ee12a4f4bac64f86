-- Behind refusal.lua. KEYS: rows, open, begun, done.
-- ARGV: name, epoch, elements in all, elements at a time, oldest epoch to remember.
-- Applies the next part of one writer's rows and takes it off the list in the same step.
local name, most = ARGV[1], tonumber(ARGV[4])
if redis.call('ZSCORE', KEYS[4], name) then return {'already'} end
local head = redis.call('HGET', KEYS[2], name)
local left = redis.call('HGET', KEYS[3], name)
local length = redis.call('LLEN', KEYS[1])
if not left then
  if not head then return {'lost'} end
  if length == 0 then
    redis.call('HDEL', KEYS[2], name)
    return {'lost'}
  end
  if length ~= tonumber(ARGV[3]) + 1 then return {'refused', 'its prepared rows are not as they were written'} end
elseif not head or length ~= tonumber(left) then
  return {'refused', 'part of it is applied, and the rest cannot be told from it any more'}
end
head = cjson.decode(head)
local first = left and 0 or 1
local rows = redis.call('LRANGE', KEYS[1], first, first + most - 1)
local why = refusal(rows, head)
if why then return {'refused', why} end

local width, wrote = 2 + #head.fields, false
local function write()
  for at = 1, #rows, width do
    local nulls, key, touched = rows[at], rows[at + 1], true
    if head.mode == 'string' then
      if nulls ~= '' then redis.call('DEL', key)
      elseif head.ttl then redis.call('SET', key, rows[at + 2], 'PX', head.ttl)
      else redis.call('SET', key, rows[at + 2]) end
    elseif head.mode == 'counter' then
      touched = false
      for n, field in ipairs(head.fields) do
        if string.byte(nulls, n) ~= 48 then  -- a null adds nothing, and makes no counter
          if #head.fields > 1 then redis.call('HINCRBY', key, field, rows[at + 1 + n])
          else redis.call('INCRBY', key, rows[at + 1 + n]) end
          wrote, touched = true, true  -- keys that are overwritten may be written again, counters must not
        end
      end
    else
      local set, gone = {}, {}
      for n, field in ipairs(head.fields) do
        if string.byte(nulls, n) == 48 then
          gone[#gone + 1] = field
        else
          set[#set + 1] = field
          set[#set + 1] = rows[at + 1 + n]
        end
      end
      for from = 1, #set, 4000 do redis.call('HSET', key, unpack(set, from, math.min(from + 3999, #set))) end
      for from = 1, #gone, 4000 do redis.call('HDEL', key, unpack(gone, from, math.min(from + 3999, #gone))) end
    end
    if head.ttl and touched and head.mode ~= 'string' then redis.call('PEXPIRE', key, head.ttl) end
  end
  redis.call('LTRIM', KEYS[1], first + #rows, -1)
end

local fine, err = pcall(write)
if not fine then
  local said = string.gsub(type(err) == 'table' and err.err or tostring(err), '^@user_script: ?%d+: %-?', '')
  if not wrote then return redis.error_reply(said) end
  redis.call('HSET', KEYS[3], name, 'broken')
  return {'refused', said}
end
local rest = length - first - #rows
if rest > 0 then
  redis.call('HSET', KEYS[3], name, rest)
  return {'more'}
end
redis.call('HDEL', KEYS[2], name)
redis.call('HDEL', KEYS[3], name)
redis.call('ZADD', KEYS[4], ARGV[2], name)
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. ARGV[5])
return {'done'}
