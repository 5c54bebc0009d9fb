// The checks with tarantool-driver, which reads the schema to find spaces and indexes by name.
const Tarantool = require('tarantool-driver')

const addresses = process.env.CONNECTOR_ADDRESSES.split(',').map((one) => {
  const [host, port] = one.split(':')
  return { host, port: Number(port) }
})
const account = { username: process.env.CONNECTOR_USER, password: process.env.CONNECTOR_PASSWORD }

function connect (number, options) {
  const connection = new Tarantool({
    ...addresses[number], ...account, lazyConnect: true, retryStrategy: () => false, ...options
  })
  connection.on('error', () => {})
  return connection.connect().then(() => connection)
}

function expect (got, wanted) {
  if (JSON.stringify(got) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(got)} instead of ${JSON.stringify(wanted)}`)
  }
}

async function report (name, check) {
  let result = 'ok'
  try {
    await check()
  } catch (error) {
    result = `failed: ${String(error.message || error).replaceAll('\n', ' ')}`
  }
  console.log(`${name}: ${result}`)
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function main () {
  const connection = await connect(0)
  await report('log in', async () => {
    expect(await connection.ping(), true)
    const wrong = connect(0, { password: 'wrong' }).then(() => 'accepted', () => 'refused')
    expect(await Promise.race([wrong, sleep(10000)]), 'refused')
  })
  await report('types', async () => {
    const uuid = '64d22e4d-ac92-4a23-899a-e59f34af5479'
    const values = [null, true, false, -5, 4294967296, 3.5, 'text', ['nested'], { key: 'value' }]
    for (const value of values) {
      const [row] = await connection.replace('kv', [1, 'types', value])
      expect(row[2], value)
    }
    const identity = await connection.replace('kv', [1, 'types', connection.packUuid(uuid)])
    expect(identity[0][2].value, uuid)
    const number = (await connection.replace('kv', [1, 'types', connection.packDecimal(-123.25)]))[0][2]
    expect(Number(number.value ?? number), -123.25)
  })
  await report('requests', async () => {
    for (let number = 10; number < 15; number++) {
      expect(await connection.insert('kv', [number, 'row', number]), [[number, 'row', number]])
    }
    expect(await connection.update('kv', 'primary', [10], [['+', 2, 5]]), [[10, 'row', 15]])
    await connection.upsert('kv', [['+', 2, 5]], [11, 'row', 0])
    expect(await connection.delete('kv', 'primary', [12]), [[12, 'row', 12]])
    const chosen = await connection.select('kv', 'primary', 2, 1, 'ge', [10])
    expect(chosen, [[11, 'row', 16], [13, 'row', 13]])
  })
  await report('errors', async () => {
    const found = await connection.insert('kv', [10, 'row', 0]).catch((error) => error.message)
    if (!/^Duplicate key exists/.test(found)) throw new Error(`${found} for a duplicate key`)
  })
  await report('names', async () => {
    expect((await connection.select('kv', 'name', 1, 0, 'eq', ['types'])).length, 1)
  })
  await report('console', async () => {
    expect(await connection.eval('return true'), [true])
    expect((await connection.call('box.info')).length, 1)
  })
  await report('failover', failover)
  process.exit(0)
}

async function failover () {
  const account = process.env.CONNECTOR_USER
  const reserveHosts = addresses.slice(1).map(({ host, port }) =>
    `${account}:${process.env.CONNECTOR_PASSWORD}@${host}:${port}`)
  const connection = await connect(0, {
    reserveHosts, beforeReserve: 1, retryStrategy: () => 50
  })
  // The driver keeps writes while it connects again, so they may succeed late instead of failing.
  const end = Date.now() + 40000
  let ready = Infinity
  let last
  let after = 0
  for (let number = 1; after < 50 && Date.now() < end; number++) {
    const late = sleep(5000).then(() => { throw new Error('no answer within 5 s') })
    late.catch(() => {})
    try {
      await Promise.race([connection.replace('kv', [1000 + number, 'failover', number]), late])
      if (last || Date.now() > ready + 3000) after++
    } catch (error) {
      last = error
      after = 0
      await sleep(20)
    }
    if (number === 20) {
      console.log('failover: ready')
      ready = Date.now()
    } else {
      await sleep(5)
    }
  }
  if (after < 50) throw new Error(`no writes after the failover: ${last}`)
}

main()
