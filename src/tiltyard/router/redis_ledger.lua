-- The accounts of one tenant, each call indivisible; `ledger.py` draws the formulas, `redis_ledger.py` calls.
--
-- KEYS[1]           <prefix>: a hash of both buckets: rl, tl (levels), rt, tt (microseconds)
-- <prefix>:holds    a hash: id -> "<day> <worst> "
-- <prefix>:leases   a sorted set: id -> microseconds from which the hold is an orphan
-- <prefix>:w:<day>, <prefix>:w:<month>   hashes: spent, reserved (billionths)
-- <prefix>:s:<id>   there for a while once a hold is settled: a settlement that is sent twice counts once
--
-- Numbers are doubles: whole ones are exact below 2^53, and are written in full.
local prefix = KEYS[1]
local holds, leases = prefix .. ':holds', prefix .. ':leases'

local function whole(number) return string.format('%.0f', number + 0) end -- no "-0"
local function exact(number) return string.format('%.17g', number) end
local function optional(text) if text == '' then return nil end return tonumber(text) end

local function window(day) return prefix .. ':w:' .. day end

local function add(day, name, amount)
  for _, key in ipairs({window(day), window(string.sub(day, 1, 6))}) do
    redis.call('HINCRBY', key, name, whole(amount))
    redis.call('EXPIRE', key, 40 * 86400)
  end
end

local function of_window(day, name) return tonumber(redis.call('HGET', window(day), name) or '0') end

local function drop(id)
  local text = redis.call('HGET', holds, id)
  redis.call('ZREM', leases, id)
  if not text then return false end
  redis.call('HDEL', holds, id)
  local day, worst = string.match(text, '^(%d+) (%d+)$')
  add(day, 'reserved', -tonumber(worst))
  return true
end

local function drop_orphans(now)
  for _, orphan in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', whole(now))) do drop(orphan) end
end

local function refilled(level, at, capacity, now)
  if capacity == nil then return 0 end
  local had, when = tonumber(redis.call('HGET', prefix, level)), tonumber(redis.call('HGET', prefix, at))
  if had == nil then return capacity end
  if now > when then had = had + (now - when) * capacity / 60000000 end
  return math.min(capacity, had)
end

local function keep(level, at, capacity, value, now)
  if capacity == nil then
    redis.call('HDEL', prefix, level, at)
    return
  end
  local when = tonumber(redis.call('HGET', prefix, at) or '0')
  redis.call('HSET', prefix, level, exact(value), at, whole(math.max(when, now)))
  redis.call('EXPIRE', prefix, 86400)
end

local verb = ARGV[1]

if verb == 'reserve' then
  local now, day, id = tonumber(ARGV[2]), ARGV[3], ARGV[4]
  local tokens, worst = tonumber(ARGV[5]), tonumber(ARGV[6])
  local rpm, tpm, concurrency = optional(ARGV[7]), optional(ARGV[8]), optional(ARGV[9])
  local daily, monthly, lease = optional(ARGV[10]), optional(ARGV[11]), tonumber(ARGV[12])
  drop_orphans(now)
  local month = string.sub(day, 1, 6)
  local has_requests, has_tokens = refilled('rl', 'rt', rpm, now), refilled('tl', 'tt', tpm, now)
  local function over(budget, name)
    return budget and of_window(name, 'spent') + of_window(name, 'reserved') + worst > budget
  end
  local reason = ''
  if concurrency and redis.call('HLEN', holds) >= concurrency then reason = 'concurrency'
  elseif rpm and has_requests < 1 then reason = 'requests'
  elseif tpm and tokens > tpm then reason = 'request_too_large'
  elseif tpm and has_tokens < tokens then reason = 'tokens'
  elseif over(daily, day) then reason = 'daily_budget'
  elseif over(monthly, month) then reason = 'monthly_budget' end
  if reason == '' then
    has_requests, has_tokens = has_requests - 1, has_tokens - tokens
    redis.call('HSET', holds, id, day .. ' ' .. whole(worst))
    redis.call('ZADD', leases, whole(now + lease), id)
    add(day, 'reserved', worst)
  end
  keep('rl', 'rt', rpm, has_requests, now)
  keep('tl', 'tt', tpm, has_tokens, now)
  return {reason, exact(has_requests), exact(has_tokens)}
end

if verb == 'settle' then
  local day, id, correction, cost = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
  if not redis.call('SET', prefix .. ':s:' .. id, '1', 'NX', 'EX', 900) then return 0 end
  drop(id)
  add(day, 'spent', cost)
  local level = tonumber(redis.call('HGET', prefix, 'tl'))
  if level ~= nil then redis.call('HSET', prefix, 'tl', exact(level - correction)) end
  return 1
end

if verb == 'renew' then
  for place = 3, #ARGV do redis.call('ZADD', leases, 'XX', ARGV[2], ARGV[place]) end
  return 1
end

if verb == 'account' then
  drop_orphans(tonumber(ARGV[3])) -- of a tenant that asks no more nobody else would
  local reserved = 0
  for _, text in ipairs(redis.call('HVALS', holds)) do
    reserved = reserved + tonumber(string.match(text, ' (%d+)$'))
  end
  local day = ARGV[2]
  return {
    redis.call('HLEN', holds), whole(reserved), whole(of_window(day, 'spent')),
    whole(of_window(string.sub(day, 1, 6), 'spent')),
  }
end

return redis.error_reply('ERR there is no verb ' .. verb)
