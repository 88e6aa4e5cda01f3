package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever happens, in any order: an event that a webhook names while it is enabled arrives, or is tried
// ten times, unless the webhook is disabled or removed, or names it no more. It gets nothing else, and no
// more than four at once, and the log has every attempt.
func TestWebhook_keepsItsPromisesInAnyHistory(t *testing.T) {
	t.Parallel()
	for seed := range seeds(size(1, 4)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			bubbleOfWebhooks(t, func(s *service, r *receiver) {
				h := &webhookHistory{service: s, r: r, random: random(t, seed), running: map[string]int{},
					enabledAt: map[string]time.Time{}, excused: map[string]bool{},
					replayedAt: map[string]time.Time{}, arrived: map[string][]arrival{}}
				h.answers = rand.New(rand.NewPCG(h.random.Uint64(), h.random.Uint64()))
				s.store.writer.now = h.now
				h.accounts = append(s.addAccounts(1), s.account)
				for i := range 4 {
					h.add(h.accounts[i%2])
				}
				r.setAnswer(h.receive)
				h.start(time.Second)
				for range size(60, 120) {
					h.act()
					h.note()
					pauses := []time.Duration{0, 0, 10 * time.Millisecond, time.Second, 3 * time.Second, time.Minute}
					time.Sleep(pauses[h.random.IntN(len(pauses))])
					if h.random.IntN(20) == 0 {
						time.Sleep(40 * time.Minute)
					}
					h.note()
				}
				h.calm.Store(true)
				h.restart(time.Hour)
				time.Sleep(12 * 24 * time.Hour)
				h.stop()
				h.judge()
			})
		})
	}
}

// A webhookHistory is a random history of webhooks, and what they owe by it.
type webhookHistory struct {
	*service
	r        *receiver
	random   *rand.Rand // of what is done
	answers  *rand.Rand // of how receivers answer; guarded by mu
	accounts []string
	hooks    []*webhook // Types are all that were ever named
	stop     func()
	calm     atomic.Bool  // every answer is 204 at once
	offset   atomic.Int64 // of the wall clock

	mu         sync.Mutex
	starts     int                  // of the worker
	running    map[string]int       // attempts that are being answered, by webhook
	enabledAt  map[string]time.Time // when a webhook was last seen to be enabled
	arrived    map[string][]arrival // by webhook and event
	debts      []webhookDebt
	replayedAt map[string]time.Time // when the replay of a webhook began
	excused    map[string]bool      // webhooks and types that are named no more
}

// An arrival is an attempt that a receiver got.
type arrival struct {
	ended  time.Time
	status int
	cut    bool // the worker stopped meanwhile
}

// A webhookDebt is an event that is to be sent to a webhook after a moment.
type webhookDebt struct {
	queue          int64
	hook, kind, id string
	after          time.Time
	byHand         bool
}

func (h *webhookHistory) now() time.Time { return time.Now().Add(time.Duration(h.offset.Load())) }

var historyTypes = []eventType{eventLeadCreated, eventWidgetCreated, eventLicenseCreated}

func (h *webhookHistory) someTypes() []eventType {
	return historyTypes[h.random.IntN(2):][:1+h.random.IntN(2)]
}

func (h *webhookHistory) add(account string) {
	types := h.someTypes()
	w := &webhook{AccountID: account}
	for _, kind := range types {
		w.Types = append(w.Types, string(kind))
	}
	w.ID = h.subscribe(account, h.r.url(fmt.Sprint("/", len(h.hooks))), types...)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hooks = append(h.hooks, w)
}

func (h *webhookHistory) start(tick time.Duration) {
	w := webhookWorkerOf(h.server)
	w.tick, w.now = tick, h.now
	h.stop = h.beside(w.run)
}

// restart stops the worker, after which what it did not wait for is cut, and starts another.
func (h *webhookHistory) restart(tick time.Duration) {
	h.stop()
	synctest.Wait() // until what was sent has arrived
	h.mu.Lock()
	h.starts++
	clear(h.running)
	h.mu.Unlock()
	h.start(tick)
}

// receive answers as receivers do.
func (h *webhookHistory) receive(w http.ResponseWriter, m message) {
	var at int
	fmt.Sscanf(m.path, "/%d", &at)
	h.mu.Lock()
	named := h.hooks[at]
	h.mu.Unlock()
	hook := named.ID
	var state, types, account string
	h.store.one(`SELECT state, types FROM webhooks WHERE id = ?`, []any{hook}, &state, &types)
	var kind eventType
	h.store.one(`SELECT type, account_id FROM events WHERE id = ?`, []any{m.id}, &kind, &account)
	h.mu.Lock()
	now := time.Now()
	if state == webhookEnabled {
		h.enabledAt[hook] = now
	}
	switch {
	case account != named.AccountID:
		h.t.Errorf("%s got an event of %q", hook, account)
	case kind == eventWebhookTest:
	case now.Sub(h.enabledAt[hook]) > 3*time.Second:
		h.t.Errorf("%s got %s while it was %s, not enabled since %v", hook, m.id, state, now.Sub(h.enabledAt[hook]))
	case !slices.Contains(named.Types, string(kind)):
		h.t.Errorf("%s got a %s, which it never named", hook, kind)
	}
	started := h.starts
	if h.running[hook]++; h.running[hook] > maxSendingWebhook {
		h.t.Errorf("%s gets %d at once", hook, h.running[hook])
	}
	status, takes := http.StatusNoContent, time.Duration(0)
	if dice := h.answers.IntN(400); !h.calm.Load() {
		status = []int{204, 204, 204, 500, 429, 502, 302, 200}[dice%8]
		delays := []time.Duration{0, 0, 0, 113, 3107, 13917, 20000} // never as a stop ends
		takes = delays[h.answers.IntN(len(delays))] * time.Millisecond
		if dice == 399 {
			status = http.StatusGone
		}
		if status == 429 && h.answers.IntN(2) == 0 {
			w.Header().Set("Retry-After", "90")
		}
	}
	h.mu.Unlock()
	time.Sleep(min(takes, 15*time.Second-1))
	h.mu.Lock()
	if h.starts == started {
		h.running[hook]--
	}
	if takes > 15*time.Second {
		status = 0
	}
	h.mu.Unlock()
	ended := time.Now()
	if status == 0 {
		time.Sleep(5 * time.Second) // a stop may end just when the time for the answer does
	}
	h.mu.Lock()
	key := hook + " " + m.id
	h.arrived[key] = append(h.arrived[key], arrival{ended, status, h.starts != started})
	h.noteEnabled(hook) // until this answer, which may disable it
	h.mu.Unlock()
	if status == 0 {
		status = http.StatusNoContent
	}
	w.WriteHeader(status)
}

// note looks which webhooks are enabled.
func (h *webhookHistory) note() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.hooks {
		h.noteEnabled(w.ID)
	}
}

// noteEnabled notes when a webhook is enabled. The caller holds mu.
func (h *webhookHistory) noteEnabled(hook string) {
	if h.count(`SELECT count(*) FROM webhook_queues WHERE webhook_id = ?`, hook) > 0 {
		h.enabledAt[hook] = time.Now()
	}
}

// act does something at random.
func (h *webhookHistory) act() {
	at := h.random.IntN(len(h.hooks))
	hook := h.hooks[at]
	by, inTransaction := anAuthor, h.change
	if h.random.IntN(3) == 0 { // by a command
		inTransaction = h.changeByCommand
	}
	rule := func(f func(*tx) error) {
		inTransaction(func(t *tx) error {
			err := f(t)
			if errors.Is(err, errWebhook) || errors.Is(err, errWebhookDisabled) {
				return nil
			}
			return err
		})
	}
	patch := func(name string, to any) {
		rule(func(t *tx) error {
			_, err := patchWebhook(t, anyAccount, hook.ID, change{{name: name, at: to}}, by)
			return err
		})
	}
	switch h.random.IntN(40) {
	default:
		inTransaction(func(t *tx) error { return h.write(t, 1+h.random.IntN(12)) })
	case 0, 17, 18, 19:
		rule(func(t *tx) error { _, err := enableWebhook(t, anyAccount, hook.ID, by); return err })
	case 1:
		patch("state", new(webhookDisabled))
	case 2:
		if h.random.IntN(3) == 0 {
			patch("url", new(h.r.url(fmt.Sprintf("/%d?%d", at, h.random.IntN(3)))))
		}
	case 3, 4, 5:
		patch("types", new(h.newTypes(hook)))
	case 6:
		rule(func(t *tx) error { _, err := requestTest(t, anyAccount, hook.ID, by); return err })
	case 7, 8:
		rule(func(t *tx) error { return h.replay(t, hook, by) })
	case 9, 10:
		rule(func(t *tx) error { return h.retry(t, hook, by) })
	case 11, 12:
		h.restart(time.Second)
	case 13:
		h.fullDisk(true)
		time.Sleep(time.Duration(h.random.IntN(20)) * time.Second)
		h.fullDisk(false)
	case 14:
		h.rename("webhook_retries", "gone")
		time.Sleep(time.Duration(h.random.IntN(4)) * time.Second)
		h.rename("gone", "webhook_retries")
	case 15:
		h.offset.Store(int64(time.Duration(h.random.IntN(12)-6) * time.Hour))
	case 16:
		if len(h.hooks) < 8 {
			h.add(h.accounts[h.random.IntN(2)])
			return
		}
		rule(func(t *tx) error { return removeWebhook(t, anyAccount, hook.ID, "command") })
	}
}

// changeByCommand is change by another process.
func (h *webhookHistory) changeByCommand(f func(*tx) error) {
	other, err := openStore(h.store.path, storeOptions{noCheckpoints: true})
	h.check(err)
	other.writer.now = h.now
	h.check(other.update(h.t.Context(), f))
	h.check(other.close())
}

// owe notes the events that a condition names, of those that webhooks name.
func (h *webhookHistory) owe(t *tx, since func(hook string) time.Time, condition string, args ...any) error {
	return t.each(`SELECT q.id, w.id, e.type, e.id FROM webhook_queues q JOIN webhooks w ON w.id = q.webhook_id
		JOIN events e ON e.account_id = w.account_id
		WHERE e.type IN (SELECT value FROM json_each(w.types)) AND `+condition, args, func(
		scan func(...any) error,
	) error {
		var d webhookDebt
		err := scan(&d.queue, &d.hook, &d.kind, &d.id)
		d.after = since(d.hook)
		delete(h.excused, d.hook+" "+d.id)
		h.debts = append(h.debts, d)
		return err
	})
}

// write writes events in one transaction, and notes in it who is to get them.
func (h *webhookHistory) write(t *tx, n int) error {
	for range n {
		account, kind := h.accounts[h.random.IntN(2)], historyTypes[h.random.IntN(len(historyTypes))]
		t.addEvent(event{Type: kind, AccountID: account, SubjectID: account, Actor: actorSite})
		err := h.owe(t, func(string) time.Time { return time.Now() }, `e.seq = (SELECT max(seq) FROM events)`)
		if err != nil {
			return err
		}
	}
	return nil
}

// newTypes returns other types for a webhook, which it gets nothing else of from then on.
func (h *webhookHistory) newTypes(hook *webhook) (types []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, kind := range h.someTypes() {
		types = append(types, string(kind))
		if !slices.Contains(hook.Types, string(kind)) {
			hook.Types = append(hook.Types, string(kind))
		}
	}
	for _, d := range h.debts {
		if d.hook == hook.ID && !slices.Contains(types, d.kind) {
			h.excused[d.hook+" "+d.id] = true
		}
	}
	return types
}

// replay replays the events of some hours of a webhook.
func (h *webhookHistory) replay(t *tx, hook *webhook, by webhookAuthor) error {
	since := newStamp(t.exact.Add(-time.Duration(h.random.IntN(8)) * time.Hour))
	before, err := t.webhook(anyAccount, hook.ID)
	if err != nil {
		return err
	}
	if _, err := replayEvents(t, anyAccount, hook.ID, since, by); err != nil {
		return err
	}
	if !before.Replaying { // else both run as one, since the first began
		h.replayedAt[hook.ID] = time.Now()
	}
	return h.owe(t, func(hook string) time.Time { return h.replayedAt[hook] },
		`e.seq > q.replay_seq AND e.seq <= q.replay_end AND w.id = ? AND e.at >= ?`, hook.ID, since)
}

// retry retries a delivery of a webhook by hand.
func (h *webhookHistory) retry(t *tx, hook *webhook, by webhookAuthor) error {
	d := webhookDebt{hook: hook.ID, after: time.Now(), byHand: true}
	var delivery string
	err := t.one(`SELECT d.id, d.event_id, q.id FROM deliveries d JOIN webhook_queues q ON q.webhook_id = d.webhook_id
		LEFT JOIN webhook_retries r ON r.queue_id = q.id AND r.event_seq = d.event_seq
		WHERE d.webhook_id = ? AND d.type <> 'webhook.test' AND r.attempts IS NULL ORDER BY d.id LIMIT 1 OFFSET ?`,
		[]any{hook.ID, h.random.IntN(20)}, &delivery, &d.id, &d.queue)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err == nil {
		_, err = retryDelivery(t, anyAccount, hook.ID, delivery, by)
	}
	if err == nil {
		h.debts = append(h.debts, d)
	}
	return err
}

// judge holds what arrived and what is in the log against what is owed.
func (h *webhookHistory) judge() {
	owed := 0
	for _, d := range h.debts {
		key := d.hook + " " + d.id
		if h.count(`SELECT count(*) FROM webhook_queues WHERE id = ?`, d.queue) == 0 || h.excused[key] && !d.byHand {
			continue
		}
		owed++
		came := slices.ContainsFunc(h.arrived[key], func(a arrival) bool {
			return !a.ended.Before(d.after) && (d.byHand || succeeded(a.status))
		})
		if !came && h.count(`SELECT count(*) FROM deliveries WHERE webhook_id = ? AND event_id = ? AND attempt = 10`,
			d.hook, d.id) == 0 {
			h.t.Errorf("%s never got %s of %v, %+v: %v", d.hook, d.id, d.after, d, h.arrived[key])
		}
	}
	for key, all := range h.arrived {
		hook, id, _ := strings.Cut(key, " ")
		if h.count(`SELECT count(*) FROM webhooks WHERE id = ?`, hook) == 0 {
			continue
		}
		cut := 0
		for _, a := range all {
			if a.cut {
				cut++
			}
		}
		logged := h.count(`SELECT count(*) FROM deliveries WHERE webhook_id = ? AND event_id = ?`, hook, id)
		if logged > len(all) || logged < len(all)-cut {
			h.t.Errorf("%s: %d of %d attempts, %d of them cut, are in the log: %+v", key, logged, len(all), cut, all)
		}
	}
	h.counts(0, `SELECT count(*) FROM webhook_retries r JOIN webhook_queues q ON q.id = r.queue_id`)
	h.counts(0, `SELECT count(*) FROM webhook_queues WHERE replay_seq IS NOT NULL`)
	h.t.Logf("%d events owed, %d sent", owed, len(h.arrived))
}
