-- sliding-log: the twin of sliding_log.rs. A sorted set: score = time; member = '<end>:<cost>:<window>', the cumulative
-- cost up to and with the entry, its own, and the window it was written under. Members are unique because ends are, and
-- no question needs the whole set: what any range has cost is one subtraction. Entries of one microsecond are one member.

local log = {}

local MAX = 2 ^ 53 - 1

-- The entry of a reply to ZRANGE ... WITHSCORES, if there is one.
local function entry(reply)
  if reply[1] then
    local last, cost, window = string.match(reply[1], '^(%d+):(%d+):(%d+)$')
    local time = tonumber(reply[2])
    return { member = reply[1], time = time, last = tonumber(last), cost = tonumber(cost), window = tonumber(window) }
  end
end

local function at_rank(key, rank)
  return entry(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES'))
end

local function add(key, time, last, cost, window)
  redis.call('ZADD', key, text(time), table.concat({ text(last), text(cost), text(window) }, ':'))
end

-- The time to judge by, or nothing where no entry counts: all expired, or so far ahead that the clock was wrong.
local function effective(state, plan, now)
  local newest = state.newest
  if newest and newest.time + plan.window > now and newest.time <= now + plan.window then
    return math.max(now, newest.time)
  end
end

-- The time up to which entries no longer count. What another window had let go when this one came into force, it has.
local function cutoff(state, plan, at)
  return text(math.max(at - plan.window, state.floor))
end

-- The first entry that counts at that time, and what all that do have cost.
local function live(state, plan, at)
  local after = '(' .. cutoff(state, plan, at)
  local first = entry(redis.call('ZRANGE', state.key, after, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES'))
  return first, wrapping_sub(state.newest.last, first.last) + first.cost
end

-- The time of the first entry with which `need` of the cost has left, found by galloping over ranks.
local function leaving(state, first, need)
  if first.cost >= need then
    return first.time
  end
  local base = wrapping_sub(first.last, first.cost)
  local low = redis.call('ZRANK', state.key, first.member)
  local step, found = 1, nil
  repeat
    found = at_rank(state.key, low + step) or state.newest
    step = step * 2
  until wrapping_sub(found.last, base) >= need
  local high = low + step / 2
  low = low + math.floor(step / 4)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    local candidate = at_rank(state.key, middle)
    if candidate and wrapping_sub(candidate.last, base) < need then
      low = middle
    else
      high, found = middle, candidate or found
    end
  end
  return found.time
end

-- Drops what has expired at that time.
local function purge(state, plan, at)
  redis.call('ZREMRANGEBYSCORE', state.key, '-inf', cutoff(state, plan, at))
end

function log.load(key, plan, since)
  local state = { key = key, newest = at_rank(key, -1), floor = 0 }
  local old = state.newest and state.newest.window
  if old and old ~= plan.window then
    local at = effective(state, { window = old }, since)
    if at then
      state.floor = math.max(at - old, 0)
    else
      state.newest = nil
    end
  end
  return state
end

function log.evaluate(state, plan, now, cost)
  local at = effective(state, plan, now)
  if not at then
    return judge(plan, 0, cost)
  end
  local first, used = live(state, plan, at)
  return judge(plan, used, cost, function()
    return leaving(state, first, used - (plan.capacity - cost)) + plan.window - now
  end)
end

function log.commit(state, plan, now, cost)
  local at = effective(state, plan, now)
  if not at then
    redis.call('DEL', state.key)
    at = now
    add(state.key, at, cost, cost, plan.window)
  else
    local _, used = live(state, plan, at)
    purge(state, plan, at)
    cost = math.min(cost, MAX - used)
    local own = cost
    if at == state.newest.time then
      redis.call('ZREM', state.key, state.newest.member)
      own = own + state.newest.cost
    end
    add(state.key, at, wrapping_add(state.newest.last, cost), own, plan.window)
  end
  redis.call('PEXPIRE', state.key, ttl(at + plan.window - now))
  state.newest, state.floor = at_rank(state.key, -1), 0
  return at, cost
end

function log.reset_after(state, plan, now)
  return effective(state, plan, now) and state.newest.time + plan.window - now or 0
end

-- The entry gives back what it can; the ends of all later ones move with it.
function log.refund(state, plan, now, at, amount)
  local judged = effective(state, plan, now)
  if not judged then
    return
  end
  purge(state, plan, judged)
  local given = entry(redis.call('ZRANGE', state.key, text(at), text(at), 'BYSCORE', 'WITHSCORES'))
  if not given then
    return
  end
  local back = math.min(amount, given.cost)
  local rank = redis.call('ZRANK', state.key, given.member)
  redis.call('ZREM', state.key, given.member)
  if back < given.cost then
    add(state.key, at, wrapping_sub(given.last, back), given.cost - back, given.window)
    rank = rank + 1
  end
  local later = at_rank(state.key, rank)
  while later do
    redis.call('ZREM', state.key, later.member)
    add(state.key, later.time, wrapping_sub(later.last, back), later.cost, later.window)
    rank = rank + 1
    later = at_rank(state.key, rank)
  end
  state.newest = at_rank(state.key, -1)
  log.carry(state, plan, judged)
end

-- Writes down that the log is under this plan now: what an earlier window had let go is purged, the newest entry says so.
function log.carry(state, plan, now)
  local newest = state.newest
  if not newest then
    redis.call('DEL', state.key)
  elseif newest.window ~= plan.window then
    redis.call('ZREMRANGEBYSCORE', state.key, '-inf', text(state.floor))
    redis.call('ZREM', state.key, newest.member)
    add(state.key, newest.time, newest.last, newest.cost, plan.window)
    redis.call('PEXPIRE', state.key, ttl(math.max(newest.time + plan.window - now, 0)))
    state.newest, state.floor = at_rank(state.key, -1), 0
  end
end

algorithms['sliding-log'] = log
