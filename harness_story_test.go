package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Stories are tests as text, as exchanges are (see TestExchange, whose lines a story may have): what a guest, a
// restaurant and a provider do with one order, and what comes of it. testdata/story/NOUN.txt has a bubble with a shop
// for each story, and for each method that it names:
//
//	# The guest pays, and nobody accepts
//	by card mobile                 guests pay by each of these in turn; also METHOD: the account has that, too;
//	                               handover: it captures when the goods are handed over. Without it: by card
//	begins paid {"tip":100}        what leads there; or to authorized, charged (TWINT), dead (rejected, and captured)
//	place {"tip":100}              an order of 42.00: 2 pizzas of 18.50, wine for nothing, delivery 5.00; is $order
//	guest starts [METHOD]          or switches: by the other method; ! says: it is told so; returns: it is sent to no
//	                               provider. Or pays, declines; tries: to start, until it works
//	settle                         the provider is asked about all attempts
//	deliver                        the providers' webhooks come
//	work [30s]                     the worker runs from here on, this often
//	expire                         the chore that lets orders expire
//	wait 30m                       time passes
//	states paid captured [REASON]  of the order and its last attempt; with a reason it is in review, and
//	                               status tells so
//	await paid captured            the same within an hour
//	accept {"lines":[…]}           or reject, cancel, capture, refund 1000, refund (all), paid cash, paid undone
//	accept ! 409 order_state       is refused, and changes nothing
//	fails capture 400, 500         how the next calls of a kind fail; always: all; never: no more
//	there captures 1000            or refunds 1000 (without: all), fails, becomes STATUS: what somebody gave back;
//	                               dispute STATUS; amount N and currency C of the attempt; forgets, remembers it
//	before expire guest pays       something happens when the next call of a kind comes
//	told order.paid order.review=0 how often, once or so many times
//	money 0 4200 1000              what the provider has of the last attempt: reserved, captured, given back
//	asked capture 1                calls of a kind since this was asked before
//	order {"total":2350}           members of the order
//	revenue 2350 260=2350,60       what all days have received, and of that at a rate, with its VAT
//
// After each line, all money that the providers hold is accounted for. There are no variables and no loops.
func TestStory(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/story/*.txt")
	must(t, err)
	if len(files) == 0 {
		t.Fatal("there are no stories")
	}
	verbs := slices.Collect(maps.Keys(storyVerbs))
	for _, file := range files {
		cases, err := readExchanges(file, append(verbs, "by")...)
		must(t, err)
		for _, c := range cases {
			methods, also, handover := c.shops()
			for _, method := range methods {
				place, title, _ := strings.Cut(c.title, " ")
				provider := findMethod(method).provider
				all := append([]string{provider}, slices.DeleteFunc(slices.Clone(also),
					func(other string) bool { return other == provider })...)
				t.Run(filepath.Base(file)+"/"+title+"/"+method, func(t *testing.T) {
					t.Parallel()
					inShop(t, func(s *shop) {
						if s.method = method; handover {
							s.sql(`INSERT INTO account_settings (account_id, capture_on)
								VALUES (?, 'handover')`, s.account)
						}
						if len(also) > 0 && method == methodCard {
							s.currency = "NOK"
						}
						told := &story{shop: s, exchange: newExchange(s.service, s.commitCounter())}
						if err := told.tell(c); err != nil {
							t.Errorf("%s: %v", place, err)
						}
					}, all...)
				})
			}
		}
	}
}

// shops reads the line 'by' of a story, which is its first, if it has one.
func (c *exchangeCase) shops() (methods, also []string, handover bool) {
	if len(c.steps) > 0 && c.steps[0].verb == "by" {
		words := strings.Fields(c.steps[0].text)
		c.steps = c.steps[1:]
		for i, word := range words {
			switch {
			case word == "handover":
				handover = true
			case i > 0 && words[i-1] == "also":
				also = append(also, findMethod(word).provider)
			case word != "also":
				methods = append(methods, word)
			}
		}
	}
	if len(methods) == 0 {
		methods = []string{methodCard}
	}
	return methods, also, handover
}

// A story is one that is being told.
type story struct {
	*shop
	exchange  *exchangeRun
	id        string // of the order
	working   bool
	forgotten string // the session that the provider does not know
}

var storyVerbs map[string]func(b *story, words []string, text string) error

func init() {
	storyVerbs = map[string]func(b *story, words []string, text string) error{
		"place": (*story).places, "guest": (*story).guest, "states": (*story).hasStates,
		"fails": (*story).fails, "there": (*story).there, "before": (*story).before, "told": (*story).told,
		"await": func(b *story, words []string, text string) error {
			b.await(b.id, words[0], words[1])
			return b.hasStates(words, text)
		},
		"settle":  func(b *story, _ []string, _ string) error { return b.lookAtAll() },
		"deliver": func(b *story, _ []string, _ string) error { b.deliver(); return b.lookAtAll() },
		"expire": func(b *story, _ []string, _ string) error {
			return b.chore("orders can't expire")(b.t.Context())
		},
		"wait": func(b *story, words []string, text string) error {
			d, err := parseWait(text)
			time.Sleep(d)
			return err
		},
		"work": func(b *story, _ []string, text string) error {
			tick, err := parseWait(text)
			if b.working = true; tick > 0 {
				b.work(tick)
			} else {
				b.work()
			}
			return err
		},
		"money": func(b *story, _ []string, text string) error {
			m := b.money(b.attempt(b.id))
			return differ("the provider has", fmt.Sprint(m.authorized, m.captured, m.refunded), text)
		},
		"asked": func(b *story, words []string, _ string) error {
			return differ("calls", fmt.Sprint(b.asked(words[0])), words[1])
		},
		"revenue": (*story).revenue,
		"order": func(b *story, _ []string, text string) error {
			return b.send("GET", "/orders/"+b.id, "", "200 "+text)
		},
		"cancel": decides("POST", "/cancel"),
		"accept": decides("POST", "/accept"), "reject": decides("POST", "/reject"),
		"capture": decides("POST", "/capture"), "refund": decides("POST", "/refunds"),
		"paid":   decides("POST", "/paid"),
		"begins": (*story).begins,
	}
}

func differ(what, got, want string) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%s %s", what, got)
}

// tell tells a story and returns what is not as it should be.
func (b *story) tell(c exchangeCase) error {
	at := ""
	defer func() {
		if b.t.Failed() { // what fails at once has not said where
			b.t.Log("at", at)
		}
	}()
	for _, step := range c.steps {
		at = step.at
		if err := b.step(step); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		b.accountedFor()
	}
	return nil
}

func (b *story) step(step exchangeStep) error {
	do, ofStory := storyVerbs[step.verb]
	if !ofStory {
		b.exchange.auth = b.seller()
		return b.exchange.step(step)
	}
	text, err := b.exchange.fill(step.text)
	if err != nil {
		return err
	}
	return do(b, strings.Fields(text), text)
}

// send sends a request, whose answer is as a line '<' has it, whatever events it writes.
func (b *story) send(method, path, body, want string) error {
	b.exchange.auth = b.seller()
	a := b.exchange.send([3]string{method, path, body})
	status, members := want, ""
	if i := strings.IndexByte(want, '{'); i >= 0 {
		status, members = want[:i], want[i:]
	}
	if err := judgeStatus(a, strings.Fields(status), 200); err != nil {
		return err
	}
	if a.status >= 400 && !b.working {
		return b.exchange.wroteNothing()
	}
	if members == "" {
		return nil
	}
	return b.exchange.match(members, []byte(a.body))
}

// decides returns the step of somebody who decides about the order.
func decides(method, path string) func(b *story, words []string, text string) error {
	return func(b *story, _ []string, text string) error {
		body, want, _ := strings.Cut(text, "!")
		if body, undone := strings.CutPrefix(body, "undone"); undone {
			return b.send("DELETE", "/orders/"+b.id+path, strings.TrimSpace(body), strings.TrimSpace(want))
		}
		if body = strings.TrimSpace(body); body != "" && body[0] != '{' {
			if path == "/paid" {
				body = strconv.Quote(body)
			}
			body = map[string]string{"/refunds": `{"amount":`, "/paid": `{"method":`}[path] + body + "}"
		}
		return b.send(method, "/orders/"+b.id+path, body, strings.TrimSpace(want))
	}
}

// storyBeginnings are what leads to the states in which stories begin.
var storyBeginnings = map[string]string{
	"authorized": "guest starts; guest pays; settle; states authorized authorized",
	"charged":    "guest starts; guest pays; settle; states authorized captured",
	"paid":       "guest starts; guest pays; settle; accept; capture; settle; states paid captured",
	"dead": "guest starts; guest pays; settle; reject; there captures 4200; settle; " +
		"states cancelled review order_is_dead; told order.review",
}

// begins brings a new order to a state.
func (b *story) begins(words []string, text string) error {
	err := b.places(nil, strings.TrimSpace(strings.TrimPrefix(text, words[0])))
	for _, line := range strings.Split(storyBeginnings[words[0]], "; ") {
		verb, rest, _ := strings.Cut(line, " ")
		if err == nil {
			err = b.step(exchangeStep{verb: verb, text: rest})
		}
	}
	b.takeCalls()
	return err
}

// places makes an order over HTTP.
func (b *story) places(_ []string, text string) error {
	body := map[string]any{}
	if err := json.Unmarshal([]byte(`{"lines":[{"name":"Pizza","quantity":2,"unit_amount":1850,"vat_rate":260,
		"group":"food"},{"name":"Wine","quantity":1,"unit_amount":0,"vat_rate":810}],
		"delivery":{"amount":500,"vat_rate":810},"return_url":"`+siteOrigin+`/thanks"}`), &body); err != nil {
		return err
	}
	body["currency"] = b.currency
	if text != "" {
		if err := json.Unmarshal([]byte(text), &body); err != nil {
			return err
		}
	}
	if err := b.send("POST", "/orders", encode(body), ""); err != nil {
		return err
	}
	b.id = b.exchange.last.json()["id"].(string)
	b.exchange.made["order"] = b.id
	return nil
}

// guest does what a guest does.
func (b *story) guest(words []string, text string) error {
	if words[0] == "tries" {
		b.begin(b.id)
		return nil
	}
	if words[0] != "starts" && words[0] != "switches" {
		all, err := b.store.paymentsOf(b.id)
		if err != nil {
			return err
		}
		return b.actsAtProvider(&all[len(all)-1], words[0])
	}
	text, told, refused := strings.Cut(strings.TrimPrefix(text, words[0]), "!")
	text, _, returns := strings.Cut(text, "returns")
	switch method := strings.TrimSpace(text); {
	case method != "":
		b.method = method
	case words[0] == "switches":
		b.method = map[string]string{methodCard: methodMobile, methodMobile: methodCard}[b.method]
	}
	time.Sleep(time.Second) // so that the attempts sort by their ids
	url, err := b.engine.startAttempt(b.t.Context(), b.id, b.method, siteOrigin+"/return")
	switch {
	case refused && (err == nil || !strings.Contains(err.Error(), strings.TrimSpace(told))):
		return fmt.Errorf("the guest is told %v", err)
	case refused:
		return nil
	case err != nil:
		return err
	case returns:
		return differ("the guest is sent to", url, siteOrigin+"/return")
	}
	return differ("the guest is sent to", url, valueOr(b.attempt(b.id).URL, ""))
}

// actsAtProvider has the guest act on the page of an attempt.
func (b *story) actsAtProvider(p *payment, act string) error {
	switch {
	case act == "pays":
		b.authorize(p)
	case act == "declines" && p.Provider == providerVipps:
		b.vipps.abort(p.ID)
	default:
		return fmt.Errorf("the guest can't say %q", act)
	}
	return nil
}

// lookAtAll settles all attempts.
func (b *story) lookAtAll() error {
	all, err := b.store.paymentsOf(b.id)
	for i := range all {
		if err == nil {
			err = b.engine.settle(b.t.Context(), all[i].ID)
		}
	}
	return err
}

// hasStates compares the states of the order and its last attempt.
func (b *story) hasStates(words []string, _ string) error {
	b.states(b.id, words[0], words[1])
	if len(words) < 3 {
		return nil
	}
	p := b.attempt(b.id)
	if asks := statusAsks(b.t, b.store, paymentTroubles[0]); valueOr(p.Reason, "") != words[2] || len(asks) != 1 {
		return fmt.Errorf("it is in review for %s, status asks %q", valueOr(p.Reason, "nothing"), asks)
	}
	return nil
}

// fails has the next calls of a kind fail, with faults as they are named.
func (b *story) fails(words []string, text string) error {
	faults := []providerFault{}
	for _, name := range strings.Split(strings.TrimPrefix(text, words[0]), ",") {
		fault, always := strings.CutSuffix(strings.TrimSpace(name), " always")
		for range map[bool]int{true: 10_000, false: 1}[always] {
			if fault != "never" {
				faults = append(faults, providerFault(fault))
			}
		}
	}
	for _, kind := range strings.Split(words[0], ",") {
		b.fail(kind, faults...)
	}
	return nil
}

// before has something done when the next call of a kind comes.
func (b *story) before(words []string, text string) error {
	b.beforeKind(words[0], func() {
		b.check(storyVerbs[words[1]](b, words[2:], strings.Join(words[2:], " ")))
	})
	return nil
}

// told counts the events of the order, or of a connection.
func (b *story) told(words []string, _ string) error {
	n := b.events(b.id)
	for _, word := range words {
		kind, want, some := strings.Cut(word, "=")
		if !some {
			want = "1"
		}
		got := n[eventType(kind)]
		if !strings.HasPrefix(kind, "order.") {
			got = b.eventsOf(eventType(kind))
		}
		if fmt.Sprint(got) != want {
			return fmt.Errorf("%d events %s, of %v", got, kind, n)
		}
	}
	return nil
}

// there has something happen on the provider's own pages, or at the bank.
func (b *story) there(words []string, _ string) error {
	p, arg := b.attempt(b.id), ""
	if len(words) > 1 {
		arg = words[1]
	}
	amount, _ := strconv.ParseInt(arg, 10, 64)
	if p.Provider == providerVipps {
		return b.inThePortal(p, words[0], arg, amount)
	}
	switch words[0] {
	case "captures":
		b.capturedThere(p, amount)
	case "refunds":
		form := map[string][]string{"payment_intent": {*p.IntentID}}
		if arg != "" {
			form["amount"] = []string{arg}
		}
		b.provider.mu.Lock()
		b.provider.createRefund("", form)
		b.provider.mu.Unlock()
	case "fails":
		refunds := b.refundsOf(b.id)
		b.provider.failRefund(*p.IntentID, *refunds[len(refunds)-1].ProviderID)
	case "becomes":
		b.refundsBecome(p, arg)
	case "dispute":
		b.provider.dispute(*p.IntentID, arg)
	case "amount":
		b.atProvider(p, func(x *testSession) { x.amount = amount })
	case "currency":
		b.atProvider(p, func(x *testSession) { x.currency = strings.ToLower(arg) })
	case "forgets":
		b.atProvider(p, func(x *testSession) { b.forgotten, x.id = x.id, "cs_elsewhere" })
	case "remembers":
		b.provider.session("cs_elsewhere").id = b.forgotten
	default:
		return fmt.Errorf("nobody can say %q there", words[0])
	}
	return nil
}

// inThePortal has something happen in the portal of Vipps.
func (b *story) inThePortal(p *payment, act, arg string, amount int64) error {
	switch act {
	case "captures":
		b.vipps.portalCapture(p.ID, amount)
	case "refunds":
		b.vipps.portalRefund(p.ID, amount)
	case "amount":
		b.vipps.on(p.ID, func(v *vippsFakePayment) { v.amount = amount })
	case "currency":
		b.vipps.on(p.ID, func(v *vippsFakePayment) { v.currency = arg })
	default:
		return fmt.Errorf("nobody can say %q in the portal", act)
	}
	return nil
}

// revenue compares what all days have received, and how much of that was at some rates of VAT.
func (b *story) revenue(words []string, text string) error {
	got := fmt.Sprint(b.sums())
	for _, word := range words[1:] {
		rate, _, _ := strings.Cut(word, "=")
		sum := func(column string) int {
			return b.count(`SELECT coalesce(sum(iif(what LIKE 'refund%', -`+column+`, `+column+`)), 0)
				FROM revenue_sums WHERE rate = ?`, rate)
		}
		got += fmt.Sprintf(" %s=%d,%d", rate, sum("gross"), sum("vat"))
	}
	return differ("the revenue is", got, text)
}

// Histories are what happens by chance in a world W, which is held against what must be so however it goes. One that
// fails is told.
type histories[W any] struct {
	small, large int                          // how many there are; large: with -long
	inOne        int                          // how many happen in one world, one after the other
	start        func(t *testing.T) W         // makes a world, in a bubble
	begin        func(w W, r *historyRun)     // if not nil, begins a history in it
	ops          func(random *rand.Rand) int  // how many steps it has
	op           func(w W, random *rand.Rand) // does one of them, of which historyRun.note tells
	pause        func(random *rand.Rand) (before time.Duration)
	together     bool                         // steps begin while earlier ones are under way
	held         func(w W, random *rand.Rand) // comes to rest, and checks that it is as it must be
	end          func(w W)                    // if not nil, checks the world at its end
}

// A historyRun is one history.
type historyRun struct {
	seed uint64
	mu   sync.Mutex
	told []string
}

// random returns the choices of a step.
func (r *historyRun) random(step int) *rand.Rand { return rand.New(rand.NewPCG(r.seed, uint64(step))) }

// note notes what happened.
func (r *historyRun) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, time.Now().Format("02 15:04:05.000 ")+text)
}

// run runs all histories, or the one that -seed gives.
func (k *histories[W]) run(t *testing.T) {
	all := slices.Collect(seeds(size(k.small, k.large)))
	for some := range slices.Chunk(all, max(1, k.inOne)) {
		t.Run(fmt.Sprint("from ", some[0]), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := k.start(t)
				for _, seed := range some {
					if k.happen(t, w, &historyRun{seed: seed}); t.Failed() {
						return
					}
				}
				if k.end != nil {
					k.end(w)
				}
			})
		})
	}
}

// happen has a history happen, and tells it if it fails.
func (k *histories[W]) happen(t *testing.T, w W, r *historyRun) {
	defer func() {
		if !t.Failed() {
			return
		}
		t.Logf("history %d, which -seed %d repeats:", r.seed, r.seed)
		for _, line := range r.told {
			t.Log(line)
		}
	}()
	if k.begin != nil {
		k.begin(w, r)
	}
	var under sync.WaitGroup
	for step := range k.ops(r.random(-1)) {
		random := r.random(step)
		time.Sleep(k.pause(random))
		if k.together {
			under.Go(func() { k.op(w, random) })
		} else {
			k.op(w, random)
		}
	}
	under.Wait()
	k.held(w, r.random(-2))
}
