package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Histories are what happens by chance in a world W, which is held against what must be so however it goes. Each step
// has a source of choices of its own, so that the others stay as they are where it is left out: of a history that
// fails, the runner looks for a short one that fails as well, and tells it.
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
	left []bool // steps that are left out

	mu   sync.Mutex
	told []string
}

// historyTries is how many shorter histories are tried for one that fails.
const historyTries = 40

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
			failed := uint64(0)
			whole := t.Run("whole", func(t *testing.T) {
				k.inWorld(t, func(w W) {
					for _, seed := range some {
						failed = seed
						if k.happen(t, w, &historyRun{seed: seed}); t.Failed() {
							return
						}
					}
				})
			})
			if !whole && failed > 0 {
				k.shrink(t, failed)
			}
		})
	}
}

func (k *histories[W]) inWorld(t *testing.T, f func(w W)) {
	synctest.Test(t, func(t *testing.T) {
		w := k.start(t)
		if f(w); k.end != nil {
			k.end(w)
		}
	})
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
		switch {
		case step < len(r.left) && r.left[step]:
		case k.together:
			under.Go(func() { k.op(w, random) })
		default:
			k.op(w, random)
		}
	}
	under.Wait()
	k.held(w, r.random(-2))
}

// shrink leaves out more and more of the steps of a history that fails, as long as it fails alone, and tells what is
// left.
func (k *histories[W]) shrink(t *testing.T, seed uint64) {
	steps := k.ops((&historyRun{seed: seed}).random(-1))
	left, tries := make([]bool, steps), 0
	fails := func(left []bool) bool {
		tries++
		return !t.Run("shorter", func(t *testing.T) {
			k.inWorld(t, func(w W) { k.happen(t, w, &historyRun{seed: seed, left: left}) })
		})
	}
	if !fails(left) {
		t.Logf("history %d does not fail alone", seed)
		return
	}
	for part := (steps + 1) / 2; part > 0 && tries < historyTries; part /= 2 {
		for from := 0; from < steps && tries < historyTries; from += part {
			less := slices.Clone(left)
			for i := from; i < min(from+part, steps); i++ {
				less[i] = true
			}
			if !slices.Equal(less, left) && fails(less) {
				left = less
			}
		}
	}
	kept := []int{}
	for i, out := range left {
		if !out {
			kept = append(kept, i)
		}
	}
	t.Logf("history %d fails with %d of its %d steps, %v: the last that failed tells them", seed, len(kept), steps,
		kept)
}
