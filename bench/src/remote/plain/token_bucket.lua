-- ARGV: limit, window in ms. A hash of the tokens left and when they were refilled.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'refilled')
local tokens = tonumber(bucket[1]) or limit
local refilled = tonumber(bucket[2]) or now
tokens = math.min(limit, tokens + math.max(now - refilled, 0) * limit / window)
local allowed, wait = 0, 0
if tokens >= 1 then
  allowed, tokens = 1, tokens - 1
else
  wait = math.ceil((1 - tokens) * window / limit)
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'refilled', now)
redis.call('PEXPIRE', KEYS[1], window)
return { allowed, limit - math.floor(tokens), wait }
