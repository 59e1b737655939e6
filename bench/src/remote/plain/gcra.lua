-- ARGV: limit, window in ms. A string: the theoretical arrival time, in microseconds.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2]) * 1000
local interval = window / limit
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + interval
local wait = arrival - window - now
if wait <= 0 then
  redis.call('SET', KEYS[1], arrival, 'PX', math.ceil((arrival - now) / 1000))
  return { 1, math.ceil((arrival - now) / interval), 0 }
end
return { 0, limit, math.ceil(wait / 1000) }
