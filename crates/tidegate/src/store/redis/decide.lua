-- decide, version 6: answers hits, each by several policies and all or nothing: the twin of memory/mod.rs. All that came
-- while the last call was under way come together in one; a hit that fails fails alone.
--
-- KEYS: for each ask the state's key; for amendments and resets more, see there.
-- ARGV: the time in epoch microseconds, or 0 for the server's; the shortest TTL in milliseconds; the hits, packed one after the
--   other: how many such hits there are, one after the other (2 bytes), intent (1), number of asks (2), then each ask: the number of
--   its plan (2), a flag (1), a number (7), and for amendments more; then plans, packed: the name of the algorithm, capacity,
--   window, grain, interval, tokens, per, and since when it is in force (7 bytes each; fixed_window.lua says what a calendar has
--   there); after it, in the same way, those that were in force before, oldest first.
-- Reply: packed, the time (7 bytes), then for each ask three numbers (7 bytes each): the wait (-1 allowed, -2 never, else
--   microseconds), used, reset_after. Of what is charged as asked and at this time only two: -4 less reset_after, and used. What is
--   charged otherwise has -3 before the three, and the charged cost and its time after them. For a hit that failed: -2^54 (7
--   bytes), then a text and its length (2) before it.

-- The plan that is packed at a position, and the next position. Its `text` is what is written beside states under it: since when it is
-- in force, and what its algorithm needs.
local function plan_at(packed, from)
  local name, capacity, window, grain, interval, tokens, per, since, next_from = unpack('>sI7I7I7I7I7I7I7', packed, from)
  local algorithm = algorithms[name]
  local plan = {
    algorithm = algorithm, capacity = capacity, window = window, grain = grain, interval = interval, tokens = tokens, per = per,
    since = since, text = '', packed = packed, past = next_from,
    -- Of gcra: how long a full burst takes to pay back.
    tolerance = capacity * interval,
  }
  local needs = algorithm.needs
  plan.text = pack('>I7I7I7I7I7', since, plan[needs[1]], plan[needs[2]] or 0, plan[needs[3]] or 0, plan[needs[4]] or 0)
  return plan, next_from
end

-- Of the call: its plans, the hits, packed, the numbers of the reply, the parts of it before them if they are not all, and how many of the hits
-- that are alike are begun.
local plans, hits, numbers, reply, begun

-- What the rest has.
local other

-- Takes hits that each ask one policy, which are alike but for their keys: the first has the key after `before`.
local function take_each(times, before, plan, cost)
  local keys, take, last = keys, plan.algorithm.take, #numbers
  for i = begun + 1, times do
    begun = i
    local used, reset_after = take(keys[before + i], plan, cost)
    if used then
      -- In this order: an array grows, a table with gaps does not.
      numbers[last + 1] = -4 - reset_after
      numbers[last + 2] = used
      last = last + 2
    else
      other = other or rest()
      other.decide_one(keys[before + i], plan, cost)
      last = #numbers
    end
  end
end

-- Takes hits that each ask several policies, if all of these find them usual. What they ask is packed at `asks_at`. By all but the last a
-- hit is looked at before that takes it, as all take it or none does.
local function take_all(times, before, asks_at, count)
  local keys, asked, costs, used, resets = keys, {}, {}, {}, {}
  for ask = 1, count do
    local number, _
    number, _, costs[ask] = unpack('>I2BI7', hits, asks_at + (ask - 1) * 10)
    asked[ask] = plans[number]
  end
  for i = begun + 1, times do
    begun = i
    local first, taken = before + (i - 1) * count, true
    for step = 1, 2 * count - 1 do
      local ask = step > count and step - count or step
      local plan, cost = asked[ask], costs[ask]
      taken = cost > 0
      if taken then
        taken, resets[ask] = plan.algorithm.take(keys[first + ask], plan, cost, step < count)
        used[ask] = taken
      end
      if not taken then
        break
      end
    end
    if taken then
      local last = #numbers
      for ask = 1, count do
        numbers[last + 1] = -4 - resets[ask]
        numbers[last + 2] = used[ask]
        last = last + 2
      end
    else
      other = other or rest()
      other.decide_all(first, asks_at, count)
    end
  end
end

-- Otherwise

local CHECK, PEEK, CHARGE, AMEND, RESET, INSPECT, LEASE = 0, 1, 2, 3, 4, 5, 6
local CHARGED, FAILED = -3, -2 ^ 54

-- Puts the numbers into the reply, not more at a time than a call takes.
local function pack_numbers()
  reply = reply or {}
  for from = 1, #numbers, 1000 do
    local to = math.min(from + 999, #numbers)
    reply[#reply + 1] = pack('>' .. string.rep('i7', to - from + 1), values(numbers, from, to))
  end
  numbers = {}
end

-- What the hit that is being served is answered, which counts when all of it is done; what it asks, of how many policies; the key before
-- the next that is read, and where the next ask is.
local told, intent, count, key_index, position = {}, nil, nil, nil, nil

-- Adds an answer to those of the hit that is being served.
local function answer(wait, used, reset_after, charged, at)
  -- What only a damaged state makes would be read as the beginning of something else.
  if not (wait >= NEVER and wait < WHOLE) then
    error('ERR damaged', 0)
  end
  for _, number in ipairs(charged > 0 and { CHARGED, wait, used, reset_after, charged, at } or { wait, used, reset_after }) do
    told[#told + 1] = number
  end
end

-- Makes what an algorithm rarely needs.
local function whole(algorithm)
  if not algorithm.refund then
    algorithm.rarely()
  end
  return algorithm
end

-- Takes the loaded state through every plan there has been since it was written, each as of its beginning. What was written under
-- a plan that is not known here changes now, and what was written under an older one after there was a newer one, as of when it was
-- written: somebody who shares this server has not heard of the change yet. The state is written down as it is then, so that
-- it changes once, and what nothing is left of is gone, whatever the clock does next.
local function carry_over(key, plan, written)
  local gone = false
  local algorithm = whole(plan.algorithm)
  local function change(old, new, since)
    for _, name in ipairs(algorithm.terms) do
      if old[name] ~= new[name] then
        local stamp, as_of = algorithm.stamp(old)
        if stamp and stamp > since and stamp <= now then
          since = as_of or stamp
        end
        gone = algorithm.convert(old, new, since)
        return
      end
    end
  end
  local eras, from, next_from = {}, nil, plan.past
  while next_from <= #plan.packed do
    local era
    era, next_from = plan_at(plan.packed, next_from)
    table.insert(eras, era)
    from = era.text == written and #eras or from
  end
  table.insert(eras, plan)
  if from then
    for i = from + 1, #eras do
      change(eras[i - 1], eras[i], eras[i].since)
    end
  else
    local numbers = { unpack('>I7I7I7I7I7', written) }
    local old = { capacity = 0, interval = 0 }
    for i, name in ipairs(algorithm.needs) do
      old[name] = numbers[i + 1]
    end
    old.tolerance = old.capacity * old.interval
    change(old, plan, plan.since > numbers[1] and plan.since or now)
  end
  if gone then
    call('DEL', key)
  else
    algorithm.persist(plan)
  end
end

local function load(key, plan)
  local written = plan.algorithm.load(key)
  if written and written ~= plan.text then
    carry_over(key, plan, written)
  end
  return written
end

-- Decides a hit that asks one policy, and is not as usual.
local function decide_one(key, plan, cost)
  local algorithm = plan.algorithm
  load(key, plan)
  local used, wait, reset_after = algorithm.evaluate(plan, cost)
  local charged, at = 0, 0
  if wait == ALLOWED then
    at, charged, reset_after = algorithm.commit(plan, cost)
    used = used + charged
  end
  told = numbers
  answer(wait, used, reset_after or algorithm.reset_after(plan), charged, at)
end

-- Decides a hit. The flag of an ask: 1 if it is enforced. The number: its cost.
local function decide()
  local asks, admitted = {}, true
  for i = 1, count do
    local number, enforced, cost
    number, enforced, cost, position = unpack('>I2BI7', hits, position)
    local plan, key = plans[number], keys[key_index + i]
    load(key, plan)
    local used, wait, reset_after = plan.algorithm.evaluate(plan, cost)
    admitted = admitted and (enforced == 0 or wait == ALLOWED)
    reset_after = reset_after or plan.algorithm.reset_after(plan)
    asks[i] = { plan = plan, key = key, cost = cost, used = used, wait = wait, reset_after = reset_after }
  end
  for _, ask in ipairs(asks) do
    local plan, cost, used, wait, reset_after = ask.plan, ask.cost, ask.used, ask.wait, ask.reset_after
    local charged, at = 0, 0
    if cost > 0 and (intent == CHARGE or (intent == CHECK and admitted and wait == ALLOWED)) then
      -- There is one state at a time.
      load(ask.key, plan)
      plan.algorithm.evaluate(plan, cost)
      at, charged, reset_after = plan.algorithm.commit(plan, cost)
      used = used + charged
      if intent == CHARGE then
        used, wait = plan.algorithm.evaluate(plan, 0)
      end
    end
    answer(wait, used, reset_after or plan.algorithm.reset_after(plan), charged, at)
  end
end

-- How a key stands.
local function tell(key, plan)
  load(key, plan)
  local used, wait, reset_after = plan.algorithm.evaluate(plan, 0)
  answer(wait, used, reset_after or plan.algorithm.reset_after(plan), 0, 0)
end

-- Brings what was charged to what it should have been, once. The number of an ask: how much to give back; then how much to charge,
-- the time of the charge, how long to remember the receipt in microseconds (7 bytes each). Keys: the state, the mark that the
-- receipt is used, the mark of the last reset.
local function amend()
  for _ = 1, count do
    local number, flag, back, more, at, remember
    number, flag, back, more, at, remember, position = unpack('>I2BI7I7I7I7', hits, position)
    local plan, key, mark, void = plans[number], keys[key_index + 1], keys[key_index + 2], keys[key_index + 3]
    local algorithm, written = whole(plan.algorithm), load(key, plan)
    algorithm.evaluate(plan, 0)
    local reset = tonumber(call('GET', void) or -1)
    if call('SET', mark, '', 'NX', 'PX', ttl(remember)) and at > reset then
      if more > 0 then
        algorithm.commit(plan, more)
      elseif back > 0 and written then
        algorithm.refund(plan, at, back)
      end
    end
    tell(key, plan)
    key_index = key_index + 3
  end
end

-- Forgets keys, and that receipts from before now are worth anything. The number of an ask: how long to remember that in
-- microseconds. Keys: the state, the mark of the last reset.
local function reset()
  for _ = 1, count do
    local number, flag, remember
    number, flag, remember, position = unpack('>I2BI7', hits, position)
    local plan, key, void = plans[number], keys[key_index + 1], keys[key_index + 2]
    load(key, plan)
    local _, _, lasts = plan.algorithm.evaluate(plan, 0)
    lasts = lasts or plan.algorithm.reset_after(plan)
    local last, left = tonumber(call('GET', void) or 0), call('PTTL', void)
    local lives = ttl(math.max(lasts, remember))
    call('SET', void, text(math.max(last, now)), 'PX', left > tonumber(lives) and text(left) or lives)
    call('DEL', key)
    tell(key, plan)
    key_index = key_index + 2
  end
end

-- What is stored for a key. Answers the TTL in milliseconds (7 bytes; -2: nothing is stored), how many names and numbers there are
-- (2), the names (ended by 0) and numbers (7), then the times and costs of entries (7 each) in the same way.
local function inspect()
  local plan, key = plans[unpack('>I2', hits, position)], keys[key_index + 1]
  local algorithm = whole(plan.algorithm)
  algorithm.load(key)
  local names, entries = algorithm.inspect()
  local parts = { pack('>i7I2', call('PTTL', key), #names / 2) }
  for i = 1, #names, 2 do
    table.insert(parts, pack('>sI7', names[i], names[i + 1]))
  end
  table.insert(parts, pack('>I2', #entries / 2))
  for i = 1, #entries, 2 do
    table.insert(parts, pack('>I7I7', entries[i], entries[i + 1]))
  end
  pack_numbers()
  reply[#reply + 1] = table.concat(parts)
end

-- Renews leases, where the flag of an ask is 1, or releases them. The number of an ask: that of the lease. Answers -2 in the place of
-- the wait where it is not held.
local function lease()
  for _ = 1, count do
    local number, renews, lease
    number, renews, lease, position = unpack('>I2BI7', hits, position)
    local plan, key = plans[number], keys[key_index + 1]
    local algorithm = whole(plan.algorithm)
    load(key, plan)
    algorithm.evaluate(plan, 0)
    local held = algorithm.holds(lease)
    if held and renews == 1 then
      algorithm.commit(plan, lease)
    elseif held then
      algorithm.refund(plan, now, lease)
    end
    load(key, plan)
    local used = algorithm.evaluate(plan, 0)
    answer(held and ALLOWED or NEVER, used, algorithm.reset_after(plan), 0, 0)
    key_index = key_index + 1
  end
end

local one = { serve = decide, width = 1, bytes = 10 }
local kinds = {
  [CHECK] = one, [PEEK] = one, [CHARGE] = one,
  [AMEND] = { serve = amend, width = 3, bytes = 31 },
  [RESET] = { serve = reset, width = 2, bytes = 10 },
  [INSPECT] = { serve = inspect, width = 1, bytes = 10 },
  [LEASE] = { serve = lease, width = 1, bytes = 10 },
}

-- Serves a hit whose keys come after `before`.
local function serve(kind, before, asks_at)
  told, key_index, position = {}, before, asks_at
  kind.serve()
  for _, number in ipairs(told) do
    numbers[#numbers + 1] = number
  end
end

-- Decides a hit that asks several policies, and is not as usual.
local function decide_all(before, asks_at, its_count)
  intent, count = CHECK, its_count
  serve(one, before, asks_at)
end

-- What serves hits of this kind; and how many keys and bytes an ask has.
local function kind_of(its_intent)
  local kind = kinds[its_intent]
  local function serve_each(times, before, asks_at, its_count)
    intent, count = its_intent, its_count
    while begun < times do
      begun = begun + 1
      serve(kind, before + (begun - 1) * count * kind.width, asks_at)
    end
  end
  return serve_each, kind.width, kind.bytes
end

-- A hit has failed.
local function fail(failure)
  failure = sub(type(failure) == 'table' and failure.err or tostring(failure), 1, 200)
  pack_numbers()
  reply[#reply + 1] = pack('>i7I2', FAILED, #failure) .. failure
end

local function whole_reply()
  pack_numbers()
  return table.concat(reply)
end

return { decide_one = decide_one, decide_all = decide_all, kind_of = kind_of, fail = fail, whole_reply = whole_reply }
