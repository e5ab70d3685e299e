// Scenarios for kafkajs: one line of JSON per scenario on standard output.
const assert = require('assert')
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [address, only] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'scenarios', brokers: [address], logLevel: logLevel.NOTHING })
const name = what => `js-${what}-${Date.now()}`

async function produce(topic, count, options = {}) {
  const producer = kafka.producer(options.producer || {})
  await producer.connect()
  const messages = [...Array(count).keys()].map(n => ({ key: `k${n}`, value: `v${n}`, headers: { n: `${n}` } }))
  const told = await producer.send({ topic, acks: -1, ...options.send, messages })
  await producer.disconnect()
  return told
}

async function consume(topic, count, options = {}) {
  const consumer = kafka.consumer({ groupId: options.groupId || name('group'), ...options.consumer })
  const seen = []
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`expected ${count} messages, found ${seen.length}`)), 25000)
    consumer.run({
      eachMessage: async one => {
        seen.push(one)
        if (seen.length >= count) { clearTimeout(timer); resolve() }
      },
    }).catch(reject)
  })
  await consumer.disconnect()
  return seen
}

async function withAdmin(work) {
  const admin = kafka.admin()
  await admin.connect()
  try { return await work(admin) } finally { await admin.disconnect() }
}

const topicOf = async (what, partitions = 2, more = {}) => {
  const topic = name(what)
  await withAdmin(admin => admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: partitions, ...more }] }))
  return topic
}

const scenarios = {
  'admin: create, list, describe, delete a topic': () => withAdmin(async admin => {
    const topic = name('admin')
    assert(await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] }))
    assert((await admin.listTopics()).includes(topic))
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    assert.strictEqual(topics[0].partitions.length, 3)
    await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] })
    assert.strictEqual((await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length, 5)
    await admin.deleteTopics({ topics: [topic] })
    assert(!(await admin.listTopics()).includes(topic))
  }),
  'admin: settings': () => withAdmin(async admin => {
    const topic = await topicOf('settings', 1, { configEntries: [{ name: 'retention.ms', value: '1234567' }] })
    await admin.alterConfigs({ resources: [{ type: 2, name: topic, configEntries: [{ name: 'retention.ms', value: '7654321' }] }] })
    const { resources } = await admin.describeConfigs({ resources: [{ type: 2, name: topic, configNames: ['retention.ms'] }] })
    assert.strictEqual(resources[0].configEntries[0].configValue, '7654321')
  }),
  'admin: cluster': () => withAdmin(async admin => {
    const { brokers, clusterId } = await admin.describeCluster()
    assert.strictEqual(brokers.length, 1)
    assert(clusterId)
  }),
  'produce and consume': async () => {
    const topic = await topicOf('plain')
    await produce(topic, 100)
    const seen = await consume(topic, 100)
    assert.deepStrictEqual(new Set(seen.map(one => one.message.value.toString())).size, 100)
    assert(seen.every(one => one.message.headers.n.toString() === one.message.key.toString().slice(1)))
  },
  'gzip': async () => {
    const topic = await topicOf('gzip')
    await produce(topic, 200, { send: { compression: CompressionTypes.GZIP } })
    assert.strictEqual((await consume(topic, 200)).length, 200)
  },
  'idempotent producer': async () => {
    const topic = await topicOf('idempotent', 1)
    const told = await produce(topic, 50, { producer: { idempotent: true, maxInFlightRequests: 1 } })
    assert.strictEqual(told[0].baseOffset, '0')
    assert.strictEqual((await consume(topic, 50)).length, 50)
  },
  'offsets by time': async () => {
    const topic = await topicOf('times', 1)
    const producer = kafka.producer()
    await producer.connect()
    const base = Date.now() - 100000
    await producer.send({ topic, messages: [...Array(10).keys()].map(n => ({ value: `${n}`, timestamp: `${base + n * 1000}` })) })
    await producer.disconnect()
    await withAdmin(async admin => {
      const [one] = await admin.fetchTopicOffsetsByTimestamp(topic, base + 4500)
      assert.strictEqual(one.offset, '5')
      const [ends] = await admin.fetchTopicOffsets(topic)
      assert.deepStrictEqual([ends.low, ends.high], ['0', '10'])
    })
  },
  'committed offsets, reset': async () => {
    const topic = await topicOf('commits', 1)
    const groupId = name('commits')
    await produce(topic, 10)
    await consume(topic, 10, { groupId })
    await withAdmin(async admin => {
      const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
      assert.strictEqual(partitions[0].offset, '10')
      await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '3' }] })
    })
    const seen = await consume(topic, 7, { groupId })
    assert.strictEqual(seen[0].message.offset, '3')
  },
  'groups: describe, list, delete': async () => {
    const topic = await topicOf('groups')
    const groupId = name('groups')
    await produce(topic, 5)
    await consume(topic, 5, { groupId })
    await withAdmin(async admin => {
      assert((await admin.listGroups()).groups.some(one => one.groupId === groupId))
      const { groups } = await admin.describeGroups([groupId])
      assert.strictEqual(groups[0].state, 'Empty')
      await admin.deleteGroups([groupId])
      assert(!(await admin.listGroups()).groups.some(one => one.groupId === groupId))
    })
  },
  'two members share the partitions': async () => {
    const topic = await topicOf('shared', 4)
    const groupId = name('shared')
    const seen = new Map()
    const members = await Promise.all([0, 1].map(async n => {
      const consumer = kafka.consumer({ groupId, rebalanceTimeout: 3000, heartbeatInterval: 500 })
      await consumer.connect()
      await consumer.subscribe({ topics: [topic], fromBeginning: true })
      const joined = new Promise(resolve => consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
        const mine = (payload.memberAssignment[topic] || []).length
        seen.set(n, mine)
        if (mine === 2) resolve()
      }))
      await consumer.run({ eachMessage: async () => {} })
      return { consumer, joined }
    }))
    await Promise.all(members.map(one => one.joined))
    assert.deepStrictEqual([...seen.values()], [2, 2])
    await Promise.all(members.map(one => one.consumer.disconnect()))
  },
  'delete records': async () => {
    const topic = await topicOf('records', 1)
    await produce(topic, 10)
    await withAdmin(async admin => {
      await admin.fetchTopicOffsets(topic) // else kafkajs has no metadata of the topic
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
      const [one] = await admin.fetchTopicOffsets(topic)
      assert.strictEqual(one.low, '4')
    })
  },
  'transactions: commit and abort': async () => {
    const topic = await topicOf('txn', 1)
    const producer = kafka.producer({ transactionalId: name('txn'), idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    for (const [value, ends] of [['a', 'commit'], ['b', 'abort'], ['c', 'commit']]) {
      const transaction = await producer.transaction()
      await transaction.send({ topic, messages: [{ value }] })
      await transaction[ends]()
    }
    await producer.disconnect()
    const seen = await consume(topic, 2, { consumer: { readUncommitted: false } })
    assert.deepStrictEqual(seen.map(one => one.message.value.toString()), ['a', 'c'])
  },
  'transactions: offsets': async () => {
    const topic = await topicOf('txn-offsets', 1)
    const consumerGroupId = name('txn-offsets')
    const producer = kafka.producer({ transactionalId: name('txo'), idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    const transaction = await producer.transaction()
    await transaction.sendOffsets({ consumerGroupId, topics: [{ topic, partitions: [{ partition: 0, offset: '7' }] }] })
    await transaction.commit()
    await producer.disconnect()
    await withAdmin(async admin => {
      const [{ partitions }] = await admin.fetchOffsets({ groupId: consumerGroupId, topics: [topic] })
      assert.strictEqual(partitions[0].offset, '7')
    })
  },
}

async function main() {
  for (const [test, scenario] of Object.entries(scenarios)) {
    if (only && !test.includes(only)) continue
    try {
      await scenario()
      console.log(JSON.stringify({ test, result: 'passed' }))
    } catch (error) {
      console.log(JSON.stringify({ test, result: 'failed', why: String(error && error.stack).slice(0, 400) }))
    }
  }
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
