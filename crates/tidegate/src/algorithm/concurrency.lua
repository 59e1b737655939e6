-- concurrency, version 3: the twin of concurrency.rs. A sorted set: score = when the lease ends, member = its number (7 bytes). After
-- all of them stands the longest time to live that any was given (8 bytes, with `h` before it).

-- Every hit takes several looks, so none is usual.
algorithms['concurrency'] = { needs = { 'window' }, take = function() end }

-- Otherwise

local leases = algorithms['concurrency']

-- The score of what stands at the end, above all times.
local HEAD = '9007199254740992'

local key, head, longest, used
-- What counts: after `low` and up to `high`, as scores.
local low, high

-- When a lease ends, if it counts.
local function end_of(lease)
  local score = head and lease > 0 and tonumber(call('ZSCORE', key, pack('>I7', lease)) or 0) or 0
  return score > now and score <= now + 2 * longest and score or nil
end

function leases.load(of)
  key, head = of, call('ZRANGE', of, '-1', '-1')[1]
  longest = head and unpack('>I7', head, 2) or 0
  low, high = '(' .. now_text, text(math.min(now + 2 * longest, MAX))
  -- It reads the same under any plan.
  return nil
end

function leases.reset_after()
  local last = call('ZRANGE', key, high, low, 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')
  return last[2] and last[2] - now or 0
end

function leases.evaluate(plan, lease)
  used = call('ZCOUNT', key, low, high)
  if lease == 0 or used < plan.capacity or end_of(lease) then
    return used, ALLOWED
  end
  local skip = text(used - plan.capacity)
  local ends = call('ZRANGE', key, low, high, 'BYSCORE', 'LIMIT', skip, '1', 'WITHSCORES')[2]
  return used, ends - now
end

-- Gives the lease, or renews it.
function leases.commit(plan, lease)
  local window, had, old = plan.window, end_of(lease), head
  if old then
    call('ZREMRANGEBYSCORE', key, '-inf', now_text)
    call('ZREMRANGEBYSCORE', key, '(' .. high, '(' .. HEAD)
  end
  -- None is shortened.
  local ends, lives = math.max(had or 0, now + window), used > 0 and math.max(longest, window) or window
  if old and lives == longest then
    call('ZADD', key, text(ends), pack('>I7', lease))
  else
    head, longest = pack('>BI7', 104, lives), lives
    call('ZADD', key, text(ends), pack('>I7', lease), HEAD, head)
  end
  if old and old ~= head then
    call('ZREM', key, old)
  end
  high = text(math.min(now + 2 * longest, MAX))
  if old then
    call('PEXPIRE', key, ttl(ends - now), 'GT')
  else
    call('PEXPIRE', key, ttl(ends - now))
  end
  return now, had and 0 or 1
end

function leases.rarely()
  leases.terms = {}

  function leases.holds(lease)
    return end_of(lease)
  end

  -- Releases the lease `amount`.
  function leases.refund(_, _, amount)
    call('ZREM', key, pack('>I7', amount))
    if call('ZCARD', key) == 1 then
      call('DEL', key)
    end
  end

  function leases.inspect()
    local entries = {}
    local found = call('ZRANGE', key, text(-INSPECTED - 1), '-2', 'WITHSCORES')
    for i = 2, #found, 2 do
      table.insert(entries, tonumber(found[i]))
      table.insert(entries, 1)
    end
    return {}, entries
  end
end
