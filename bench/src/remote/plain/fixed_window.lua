-- ARGV: limit, window in ms. A string: the count since its first request.
local current = redis.call('INCRBY', KEYS[1], 1)
if current == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if current <= tonumber(ARGV[1]) then
  return { 1, current, 0 }
end
return { 0, current, redis.call('PTTL', KEYS[1]) }
