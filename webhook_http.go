package main

import "context"

// webhookWing is replaced on merge.
func webhookWing(s *server) wing {
	w := webhookWorkerOf(s)
	return wing{workers: []func(context.Context){w.run}, chores: []chore{{fault: faultWebhookSweep, run: w.sweep}}}
}

// webhookWorkerOf makes the worker that sends a server's webhooks.
func webhookWorkerOf(s *server) *webhookWorker {
	w := newWebhookWorker(s.store)
	w.keys, w.outbound, w.log = s.keys.Load, s.outbound, s.log
	w.now, w.steady, w.strike = s.now, s.steady, s.strike
	w.doubted, w.stopping = s.clockDoubted.Load, s.draining.Load
	return w
}
