-- ARGV: limit, window in ms. A hash with a count for this window and one for the last.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local elapsed = now % window
local this = (now - elapsed) / window
local counts = redis.call('HMGET', KEYS[1], this, this - 1)
local current, last = tonumber(counts[1]) or 0, tonumber(counts[2]) or 0
local used = current + last * (window - elapsed) / window
if used + 1 <= limit then
  redis.call('HINCRBY', KEYS[1], this, 1)
  if current == 0 then
    redis.call('HDEL', KEYS[1], this - 2, this - 3)
    redis.call('PEXPIRE', KEYS[1], 2 * window)
  end
  return { 1, math.ceil(used + 1), 0 }
end
return { 0, math.ceil(used), window - elapsed }
