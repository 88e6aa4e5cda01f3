// Pays, captures, cancels the rest and gives back at the fake of Vipps MobilePay at $VIPPS, with Vipps' own
// client for Node, whose base address is fixed: so its fetch goes to the fake.
import assert from 'node:assert/strict'
import { Client } from '@vippsmobilepay/sdk'

const { VIPPS, CLIENT_ID, CLIENT_SECRET, SUBSCRIPTION_KEY, MERCHANT_SERIAL } = process.env
const original = globalThis.fetch
let called = 0
globalThis.fetch = async request => {
	const { origin, pathname, search } = new URL(request.url)
	assert.equal(origin, 'https://apitest.vipps.no')
	called++
	const body = request.method === 'GET' ? undefined : await request.text()
	return original(VIPPS + pathname + search, { method: request.method, headers: request.headers, body })
}

const client = Client({
	merchantSerialNumber: MERCHANT_SERIAL, subscriptionKey: SUBSCRIPTION_KEY, useTestMode: true, retryRequests: false,
	systemName: 'acme', systemVersion: '1', pluginName: 'acme', pluginVersion: '1',
})
const right = result => {
	assert.ok(result.ok, result.error?.message)
	return result.data
}

const { access_token: token } = right(await client.auth.getToken(CLIENT_ID, CLIENT_SECRET))
const webhook = right(await client.webhook.register(token, {
	url: 'https://acme.example/vipps', events: ['epayments.payment.captured.v1'],
}))
assert.ok(webhook.id && webhook.secret)
assert.deepEqual(right(await client.webhook.list(token)).webhooks.map(w => w.id), [webhook.id])

const reference = 'acme-shop-123'
const nok = value => ({ modificationAmount: { currency: 'NOK', value } })
const created = right(await client.payment.create(token, {
	amount: { currency: 'NOK', value: 5000 }, paymentMethod: { type: 'WALLET' }, reference,
	userFlow: 'WEB_REDIRECT', returnUrl: 'https://acme.example/return', paymentDescription: 'Order 123',
}))
assert.equal(created.reference, reference)
assert.ok(created.redirectUrl)
assert.equal(right(await client.payment.info(token, reference)).state, 'CREATED')
right(await client.payment.forceApprove(token, reference, { customer: { phoneNumber: '4791234567' } }))
assert.equal(right(await client.payment.capture(token, reference, nok(3000))).aggregate.capturedAmount.value, 3000)
assert.equal((await client.payment.capture(token, reference, nok(2001))).ok, false)
assert.equal(right(await client.payment.cancel(token, reference)).aggregate.cancelledAmount.value, 2000)
assert.equal(right(await client.payment.refund(token, reference, nok(1000))).aggregate.refundedAmount.value, 1000)
const info = right(await client.payment.info(token, reference))
assert.equal(info.state, 'AUTHORIZED')
assert.equal(info.aggregate.refundedAmount.value, 1000)
assert.deepEqual(right(await client.payment.history(token, reference)).map(e => e.name),
	['CREATED', 'AUTHORIZED', 'CAPTURED', 'CANCELLED', 'REFUNDED'])
right(await client.webhook.delete(token, webhook.id))
console.log(`ok ${called} calls`)
