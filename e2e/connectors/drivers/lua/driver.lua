-- The checks with net.box of an unmodified Tarantool.
local net_box = require('net.box')
local fiber = require('fiber')
local decimal = require('decimal')
local uuid = require('uuid')
local json = require('json')
local clock = require('clock')

io.stdout:setvbuf('line')
local addresses = os.getenv('CONNECTOR_ADDRESSES'):split(',')
local user, password = os.getenv('CONNECTOR_USER'), os.getenv('CONNECTOR_PASSWORD')

local function connect(number, word)
    return net_box.connect(addresses[number], {user = user, password = word or password})
end

local function report(name, check)
    local is_ok, problem = pcall(check)
    print(name .. ': ' .. (is_ok and 'ok' or 'failed: ' .. tostring(problem):gsub('\n', ' ')))
end

local function expect(got, wanted)
    if json.encode(got) ~= json.encode(wanted) then
        error(json.encode(got) .. ' instead of ' .. json.encode(wanted), 0)
    end
end

local connection = connect(1)
local kv = connection.space.kv

report('log in', function()
    expect(connection:ping(), true)
    local other = connect(1, 'wrong')
    expect(other.state, 'error')
end)

report('types', function()
    local values = {
        true, false, 2ULL ^ 63 + 5, -2LL ^ 62, 3.5, 'text', {'nested'}, {key = 'value'},
        decimal.new('-12345678901234567890.123456789'),
        uuid.fromstr('64d22e4d-ac92-4a23-899a-e59f34af5479'), box.NULL,
    }
    for _, value in ipairs(values) do
        local got = kv:replace({1, 'types', value})[3]
        if type(value) == 'table' then
            expect(got, value)
        elseif got ~= value then
            error(tostring(got) .. ' instead of ' .. tostring(value), 0)
        end
    end
end)

report('requests', function()
    for number = 10, 14 do
        expect(kv:insert({number, 'row', number}), {number, 'row', number})
    end
    expect(kv:update(10, {{'+', 3, 5}}), {10, 'row', 15})
    kv:upsert({11, 'row', 0}, {{'+', 3, 5}})
    expect(kv:delete(12), {12, 'row', 12})
    expect(kv:select(10, {iterator = 'GE', offset = 1, limit = 2}),
           {{11, 'row', 16}, {13, 'row', 13}})
end)

report('errors', function()
    local is_ok, problem = pcall(kv.insert, kv, {10, 'row', 0})
    expect({is_ok, problem.code}, {false, 3})
end)

report('names', function()
    expect(#kv.index.name:select('types', {limit = 1}), 1)
    expect(kv:format()[1].name, 'id')
end)

report('console', function()
    expect(connection:eval('return true'), true)
    expect(connection:call('box.info').ro, false)
end)

report('failover', function()
    local member, last, after, number = 1, nil, 0, 0
    local limit = clock.monotonic() + 40
    while after < 50 and clock.monotonic() < limit do
        number = number + 1
        local is_ok, problem = pcall(function()
            connection.space.kv:replace({1000 + number, 'failover', number}, {timeout = 5})
        end)
        if is_ok then
            after = last and after + 1 or 0
        else
            last, after = problem, 0
            fiber.sleep(0.02)
            member = member % #addresses + 1
            connection = connect(member)
        end
        if number == 20 then
            print('failover: ready')
        elseif not last then
            fiber.sleep(0.005)
        end
    end
    if after < 50 then
        error('no writes after the failover: ' .. tostring(last), 0)
    end
end)
os.exit(0)
