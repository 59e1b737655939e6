-- decide, version 1: answers hits, each by several policies and all or nothing: the twin of memory/mod.rs. All that came
-- while the last call was under way come together in one; a hit that fails fails alone.
--
-- KEYS: for each ask the state's key; for amendments and resets more, see there.
-- ARGV: the time in epoch microseconds, or 0 for the server's; the shortest TTL in milliseconds; the hits, packed one after the
--   other: intent (1 byte), number of asks (2), then each ask: the number of its plan (2), a flag (1), a number (7), and for
--   amendments more; then plans, packed: the name of the algorithm, capacity, window, grain, interval, tokens, per, and since
--   when it is in force (7 bytes each); after it, in the same way, those that were in force before, oldest first.
-- Reply: packed, the time (7 bytes), then for each ask five numbers (7 bytes each): the wait (-1 allowed, -2 never, else
--   microseconds), used, reset_after, the charged cost and its time. For a hit that failed: -2^54 (7 bytes), then a text and
--   its length (2) before it.

local CHECK, PEEK, CHARGE, AMEND, RESET, INSPECT = 0, 1, 2, 3, 4, 5
local FAILED = -2 ^ 54

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

local plans = {}
for i = 4, #ARGV do
  plans[i - 3] = plan_at(ARGV[i], 1)
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
-- it changes once.
local function carry_over(plan, written)
  local algorithm = whole(plan.algorithm)
  local function change(old, new, since)
    for _, name in ipairs(algorithm.terms) do
      if old[name] ~= new[name] then
        local stamp, as_of = algorithm.stamp(old)
        if stamp and stamp > since and stamp <= now then
          since = as_of or stamp
        end
        return algorithm.convert(old, new, since)
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
  algorithm.persist(plan)
end

local function load(key, plan)
  local written = plan.algorithm.load(key)
  if written and written ~= plan.text then
    carry_over(plan, written)
  end
  return written
end

local KEYS, hits = KEYS, ARGV[3]
-- The last key that was read, the next ask, and the reply so far.
local key_index, position = 0, 1
local reply, answered = { pack('>I7', now) }, 1

local function answer(wait, used, reset_after, charged, at)
  answered = answered + 1
  reply[answered] = pack('>i7I7I7I7I7', wait, used, reset_after, charged, at)
end

-- Decides a hit that asks one policy: the usual case, written out.
local function decide_one(intent, plan, cost)
  local algorithm = plan.algorithm
  local written = algorithm.load(KEYS[key_index + 1])
  if written ~= plan.text and written then
    carry_over(plan, written)
  end
  local used, wait, reset_after = algorithm.evaluate(plan, cost)
  local charged, at = 0, 0
  if cost > 0 and ((wait == ALLOWED and intent == CHECK) or intent == CHARGE) then
    at, charged, reset_after = algorithm.commit(plan, cost)
    used = used + charged
    if intent == CHARGE then
      used, wait = algorithm.evaluate(plan, 0)
    end
  end
  answered = answered + 1
  reply[answered] = pack('>i7I7I7I7I7', wait, used, reset_after or algorithm.reset_after(plan), charged, at)
end

-- Decides a hit. The flag of an ask: 1 if it is enforced. The number: its cost.
local function decide(intent, count)
  local asks, admitted = {}, true
  for i = 1, count do
    local number, enforced, cost
    number, enforced, cost, position = unpack('>I2BI7', hits, position)
    local plan, key = plans[number], KEYS[key_index + i]
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

-- What an ask has, by intent: what serves it, bytes of fields, keys.
local serve, bytes, width

local function rarely()
  -- Brings what was charged to what it should have been, once. The number of an ask: how much to give back; then how much to charge,
  -- the time of the charge, how long to remember the receipt in microseconds (7 bytes each). Keys: the state, the mark that the
  -- receipt is used, the mark of the last reset.
  local function amend(_, count)
    for _ = 1, count do
      local number, flag, back, more, at, remember
      number, flag, back, more, at, remember, position = unpack('>I2BI7I7I7I7', hits, position)
      local plan, key, mark, void = plans[number], KEYS[key_index + 1], KEYS[key_index + 2], KEYS[key_index + 3]
      local algorithm, written = whole(plan.algorithm), load(key, plan)
      local reset = tonumber(call('GET', void) or -1)
      if call('SET', mark, '', 'NX', 'PX', ttl(remember)) and at > reset then
        algorithm.evaluate(plan, 0)
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
  local function reset(_, count)
    for _ = 1, count do
      local number, flag, remember
      number, flag, remember, position = unpack('>I2BI7', hits, position)
      local plan, key, void = plans[number], KEYS[key_index + 1], KEYS[key_index + 2]
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
  local function inspect(_, _, number)
    local plan, key = plans[number], KEYS[key_index + 1]
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
    answered = answered + 1
    reply[answered] = table.concat(parts)
  end

  serve = { [AMEND] = amend, [RESET] = reset, [INSPECT] = inspect }
  bytes = { [AMEND] = 31, [RESET] = 10, [INSPECT] = 10 }
  width = { [AMEND] = 3, [RESET] = 2, [INSPECT] = 1 }
end

local size, pcall = #hits, pcall
while position <= size do
  local intent, count, number, flag, amount = unpack('>BI2I2BI7', hits, position)
  local first_key, first, first_answer = key_index, position + 3, answered
  position = first
  local ok, failure
  if count == 1 and intent <= CHARGE then
    ok, failure = pcall(decide_one, intent, plans[number], amount)
    key_index, position = first_key + 1, first + 10
  elseif intent <= CHARGE then
    ok, failure = pcall(decide, intent, count)
    key_index, position = first_key + count, first + count * 10
  else
    if not serve then
      rarely()
    end
    ok, failure = pcall(serve[intent], intent, count, number)
    key_index, position = first_key + count * width[intent], first + count * bytes[intent]
  end
  if not ok then
    for i = first_answer + 1, answered do
      reply[i] = nil
    end
    failure = sub(type(failure) == 'table' and failure.err or tostring(failure), 1, 200)
    answered = first_answer + 1
    reply[answered] = pack('>i7I2', FAILED, #failure) .. failure
  end
end
return table.concat(reply)
