-- Put before validate.lua and apply.lua: a sentence about the first row that cannot be applied, or nil.
-- Counters stay a little under 2^63, because Lua counts in doubles.
local LIMIT = 9220000000000000000

local function refusal(rows, head)
  local width = 2 + #head.fields
  local hashed = head.mode == 'hash' or (head.mode == 'counter' and #head.fields > 1)
  local wanted = hashed and 'hash' or 'string'
  local sums = {}
  for at = 1, #rows, width do
    local key = rows[at + 1]
    local kind = redis.call('TYPE', key).ok
    if kind ~= 'none' and kind ~= wanted then return 'the key ' .. key .. ' is a ' .. kind .. ', not a ' .. wanted end
    if head.mode == 'counter' then
      local there = {}
      if kind ~= 'none' then
        there = hashed and redis.call('HMGET', key, unpack(head.fields)) or {redis.call('GET', key)}
      end
      for n, field in ipairs(head.fields) do
        local name = hashed and key .. '\0' .. field or key
        if sums[name] == nil then
          local found = there[n] or '0'
          if found ~= '0' and not string.match(found, '^%-?[1-9]%d*$') then
            return 'the counter ' .. key .. ' holds what is no integer'
          end
          sums[name] = tonumber(found)
        end
        sums[name] = sums[name] + (tonumber(rows[at + 1 + n]) or 0)
        if math.abs(sums[name]) > LIMIT then return 'the counter ' .. key .. ' would overflow' end
      end
    end
  end
  return nil
end
