package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Whether what is kept of the database can be restored is proven by restoring it: into a directory of its own, and
// checking what comes out. Litestream's own answers are no proof, since it looks at files of this machine only.

// replicaNoun declares the proofs of the replica and of backups.
func replicaNoun() noun {
	return noun{
		name:     "replica",
		modules:  func(s *server) []module { return []module{{metrics: proofMetrics(s.store)}} },
		troubles: replicaTroubles,
		commands: replicaCommands,
		status:   []statusLine{{label: "replica", read: replicaStatus}},
		promoted: (*tx).forgetProofs,
	}
}

var (
	optLitestreamConfig = option{name: "config", value: "PATH",
		help: "Litestream's configuration; by default what LITESTREAM_CONFIG names, else /etc/litestream.yml"}
	optLitestreamSocket = option{name: "socket", value: "PATH",
		help: "Litestream's control socket; by default litestream.sock beside the database"}
	optProofDir = option{name: "dir", value: "DIR",
		help: "where the copy is restored, in a directory of its own; by default beside the database"}
	optVerify = option{name: "verify",
		help: "then restore the file into a directory of its own, and check that as 'replica verify' does"}
)

var replicaCommands = []command{
	{"replica verify", "", "prove that the replica can be restored: restore it, check it, and look for what was " +
		"written just before", []option{optLitestreamConfig, optLitestreamSocket, optProofDir}, replicaVerify},
	{"replica wait", "", "on a standby, wait up to 10 minutes until the copy that 'litestream restore -f' keeps has " +
		"all that the replica has", []option{optLitestreamConfig}, copyWait},
}

const (
	oldestLitestream = "0.5.17"         // the first without a fault of SQLite that loses committed pages
	replicaWait      = time.Minute      // for the replica to have what was written just before
	replicaLists     = 5 * time.Second  // for what it has to be listed then
	copyPatience     = 10 * time.Minute // for a copy to have what the replica has
	copyLists        = 30 * time.Second // for Litestream to list the replica
	restoreLimit     = 12 * time.Hour   // for restoring: one that stalls is an error
	roomToSpare      = 64 << 20         // bytes that a restored copy leaves to everybody else
	maxFaultText     = 500              // bytes of what is kept of an error
)

// A proofRun is one try to prove that the database can be restored.
type proofRun struct {
	*proof
	env  *env
	st   *store
	keys *keyring
	db   string // the path of the database, as Litestream's configuration has it
	in   epoch
	mark string
	copy string // where it is restored
}

// prove has restore bring a copy of the database to proving.copy, checks that, and writes down what has come of it. The
// copy is removed whatever happens.
func (e *env) prove(what, dir string, restore func(p *proofRun) error) (*proof, error) {
	_, keys, err := e.loadKeys()
	if err != nil {
		return nil, err
	}
	p := &proofRun{proof: &proof{What: what}, env: e, keys: keys, mark: randomText(16)}
	err = e.withStore(func(st *store) (err error) {
		p.st = st
		if p.db, err = filepath.Abs(st.path); err != nil {
			return err
		}
		failed := p.try(proofPath(p.db, dir), restore)
		if errors.Is(failed, errProofRuns) || e.ctx.Err() != nil { // which proves nothing
			return failed
		}
		if failed != nil {
			text := oneLineError{failed}.Error()
			p.Fault = strings.ToValidUTF8(text[:min(len(text), maxFaultText)], "")
		}
		return errors.Join(failed, st.update(e.ctx, func(t *tx) error { t.endProof(p.proof); return nil }))
	})
	return p.proof, err
}

// try is prove without writing down what has come of it.
func (p *proofRun) try(dir string, restore func(p *proofRun) error) error {
	own, err := openProofDir(dir)
	if err != nil {
		return fmt.Errorf("make a directory for the copy: %w", err)
	}
	defer own.remove() // what stays is removed by the next try
	p.copy = filepath.Join(dir, "copy.db")
	then, err := p.st.rowCounts()
	if err != nil {
		return err
	}
	if p.in, err = p.st.epoch(); err != nil {
		return err
	}
	err = p.st.update(p.env.ctx, func(t *tx) error { t.markProof(p.What, p.mark); return nil })
	if err != nil {
		return err
	}
	if err := restore(p); err != nil {
		return err
	}
	return p.judge(then)
}

// judge checks the copy, and that it is of this database as it was when the try began, or later.
func (p *proofRun) judge(then [4]int64) error {
	told := p.env.progress("checking what was restored")
	defer told.end()
	faults, _, err := inspectFile(p.copy)
	if err == nil && len(faults) == 0 {
		var st *store
		if st, err = openStore(p.copy, storeOptions{now: p.env.now}); err == nil {
			faults, err = p.compare(st, then)
			err = errors.Join(err, st.close())
		}
	}
	if err == nil && len(faults) > 0 {
		err = fmt.Errorf("%d faults, the first is: %s", len(faults), faults[0])
	}
	if err != nil {
		return fmt.Errorf("what was restored is not good: %w", err)
	}
	p.Bytes = fileSize(p.copy)
	return nil
}

// compare compares the restored database with this one, and checks its rows.
func (p *proofRun) compare(st *store, then [4]int64) (faults []string, err error) {
	now, err := p.st.rowCounts()
	if err == nil {
		err = st.fitsMark(p.What, p.mark, p.in, then, now)
	}
	if err != nil {
		return nil, err
	}
	return p.env.faultsOfRows(st, p.keys)
}

// checkRoom returns an error unless a copy of the database fits on the disk of its directory, and leaves room there.
func (p *proofRun) checkRoom() error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(p.copy), &disk); err != nil {
		return err
	}
	size := p.st.databaseSize() + p.st.walSize()
	free, need := int64(disk.Bavail)*int64(disk.Bsize), size+size/8+roomToSpare
	if free < need {
		return fmt.Errorf("there is no room to restore it: %s has %s left, and %s are needed: make room, or name "+
			"another disk with -dir", filepath.Dir(filepath.Dir(p.copy)), sizeText(free), sizeText(need))
	}
	return nil
}

// replicaVerify runs 'widgetd replica verify'.
func replicaVerify(e *env) error {
	dir := ""
	if e.str("dir") != "" {
		inside, err := e.target(filepath.Join(e.str("dir"), "copy"))
		if err != nil {
			return err
		}
		dir = filepath.Dir(inside)
	}
	p, err := e.prove(proofReplica, dir, (*proofRun).fromReplica)
	if p != nil && olderLitestream(p.Litestream) {
		e.note(oldLitestreamText+"\n", printable(p.Litestream))
	}
	if err != nil {
		return fmt.Errorf("the replica is not proven: %w", err)
	}
	return e.print(p, fmt.Sprintf("the replica was restored and is good: transaction %s, %s; it had what was written "+
		"after %d s", p.TXID, sizeText(p.Bytes), p.Behind))
}

// fromReplica waits until the replica has the mark, and restores it.
func (p *proofRun) fromReplica() error {
	told := p.env.progress("waiting for the replica")
	defer told.end()
	began, socket := p.env.now(), cmp.Or(p.env.str("socket"), litestreamSocket(p.db))
	awaited, cancel := context.WithTimeout(p.env.ctx, replicaWait)
	defer cancel()
	p.Litestream = p.versionOfLitestream(awaited, socket)
	var synced struct {
		TXID uint64 `json:"replica_txid"`
	}
	err := p.litestream(awaited, &synced, "sync", "-wait", "-json", "-timeout",
		strconv.Itoa(int(replicaWait/time.Second)), "-socket", socket, p.db)
	if err != nil {
		return fmt.Errorf("what was written does not come to the replica: %w", err)
	}
	if err := p.waitUntilListed(synced.TXID); err != nil {
		return err
	}
	p.Behind = int64(p.env.now().Sub(began) / time.Second)
	if err := p.checkRoom(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(p.env.ctx, restoreLimit)
	defer cancel()
	told.step("restoring the replica", p.copy+".tmp", p.st.databaseSize())
	var restored struct{ TXID string }
	err = p.litestream(limited, &restored,
		p.env.litestreamRestore(p.copy, p.db, "-json", "-integrity-check", "full")...)
	if err != nil {
		return fmt.Errorf("restoring it fails: %w", err)
	}
	p.TXID = restored.TXID
	return nil
}

// waitUntilListed waits until the replica of this epoch lists a transaction.
func (p *proofRun) waitUntilListed(txid uint64) error {
	limited, cancel := context.WithTimeout(p.env.ctx, replicaLists)
	defer cancel()
	for {
		newest, err := newestInReplica(limited, p.in, p.db, p.env.str("config"))
		if has, _ := strconv.ParseUint(newest, 16, 64); err == nil && has >= txid {
			return nil
		}
		select {
		case <-limited.Done():
			return fmt.Errorf("the replica of the epoch %s does not have the transaction %d that Litestream says it "+
				"has, but %s: does its path name %s?", p.in.variable(), txid, cmp.Or(newest, fmt.Sprint(err)),
				epochVariable)
		case <-time.After(replicaLists / 10):
		}
	}
}

// litestreamRestore are the arguments with which Litestream restores a database to another path.
func (e *env) litestreamRestore(to, db string, more ...string) []string {
	args := append([]string{"restore"}, more...)
	if config := e.str("config"); config != "" {
		args = append(args, "-config", config)
	}
	return append(args, "-o", to, db)
}

// litestream runs Litestream, with the epoch that names the replica, and reads the JSON that it prints, behind lines of
// its log. The error is the last line that it says.
func (p *proofRun) litestream(ctx context.Context, answer any, args ...string) error {
	out, err := runLitestream(ctx, p.in, args...)
	if err != nil {
		return err
	}
	begin := max(0, bytes.LastIndex(append([]byte("\n"), out...), []byte("\n{\n")))
	return json.Unmarshal(out[begin:], answer)
}

// runLitestream runs Litestream with the epoch that names the replica, and returns what it prints.
func runLitestream(ctx context.Context, in epoch, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "litestream", args...)
	cmd.Env = append(os.Environ(), epochVariable+"="+in.variable())
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("it was ended since it took too long: %w", ctx.Err())
	}
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		lines := bytes.Split(bytes.TrimSpace(failed.Stderr), []byte("\n"))
		last := strings.TrimPrefix(string(lines[len(lines)-1]), "Error: ")
		err = errors.New(cmp.Or(last, err.Error()))
	}
	return out, err
}

// newestInReplica returns the last transaction (TXID) in the replica of an epoch. Snapshots (level 9) do not count: a
// follower does not apply them, and one may be ahead of the transactions, never of those that were confirmed.
func newestInReplica(ctx context.Context, in epoch, db, config string) (newest string, err error) {
	args := []string{"ltx", "-level", "all", "-json"}
	if config != "" {
		args = append(args, "-config", config)
	}
	limited, cancel := context.WithTimeout(ctx, copyLists)
	defer cancel()
	out, err := runLitestream(limited, in, append(args, db)...)
	var files []struct {
		Level int
		TXID  string `json:"max_txid"`
	}
	if err == nil {
		err = json.Unmarshal(out, &files)
	}
	for _, file := range files {
		if file.Level != 9 {
			newest = max(newest, file.TXID)
		}
	}
	if err == nil && newest == "" {
		err = fmt.Errorf("it has no transaction of the epoch %s", in.variable())
	}
	return newest, err
}

// replicaPosition returns the last transaction in a copy that 'litestream restore -f' keeps, and the last one in
// the replica of the epoch that is named beside it.
func replicaPosition(ctx context.Context, db, config string) (copied, newest string, err error) {
	text, _ := os.ReadFile(followerPath(db)) // it is not there while the first copy is made
	copied = string(bytes.TrimSpace(text))
	named, err := readEpochFile(epochPath(db))
	if err != nil {
		return copied, "", err
	}
	if db, err = filepath.Abs(db); err == nil {
		newest, err = newestInReplica(ctx, named, db, config)
	}
	return copied, newest, err
}

// copiedTo returns the last transaction of a copy, or an error unless that is the last one of the replica, too. Then no
// page of a later one is in it, as while the follower applies one.
func copiedTo(ctx context.Context, db, config string) (txid string, err error) {
	copied, newest, err := replicaPosition(ctx, db, config)
	switch {
	case err != nil:
		return "", fmt.Errorf("what the replica has can't be told: %w", err)
	case copied < newest:
		return "", fmt.Errorf("the copy has come to the transaction %s, and the replica has %s: let the follower go "+
			"on, and have nobody else write", cmp.Or(copied, "0"), newest)
	}
	return copied, nil
}

// copyWait runs 'widgetd replica wait'.
func copyWait(e *env) error {
	db, err := e.file("db")
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(e.ctx, copyPatience)
	defer cancel()
	for {
		txid, err := copiedTo(limited, db, e.str("config"))
		if err == nil {
			return e.done("the copy has all that the replica has, up to the transaction " + txid)
		}
		select {
		case <-limited.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// versionOfLitestream returns the version of the Litestream that replicates, or if that can't be asked of the program
// that is installed; "": neither is known.
func (p *proofRun) versionOfLitestream(ctx context.Context, socket string) string {
	var running struct{ Version string }
	if p.litestream(ctx, &running, "info", "-json", "-socket", socket) == nil && running.Version != "" {
		return running.Version
	}
	out, _ := runLitestream(ctx, p.in, "version")
	return strings.TrimSpace(string(out[:min(len(out), maxFaultText)]))
}

// olderLitestream reports whether a version is older than oldestLitestream; "" is not known, and counts as none.
func olderLitestream(version string) bool {
	number := func(text string) (all int) {
		var a, b, c int
		fmt.Sscanf(strings.TrimPrefix(text, "v"), "%d.%d.%d", &a, &b, &c) // what is no number counts as 0
		return a<<20 + b<<10 + c
	}
	return version != "" && number(version) < number(oldestLitestream)
}

const oldLitestreamText = "Litestream is %s; versions before " + oldestLitestream + " can lose what was committed: " +
	"install a later one, and restart it"

// replicaStatus is what the status command says of the replica.
func replicaStatus(v *statusView, to *statusReport) error {
	p, err := v.proof(proofReplica)
	if err != nil {
		return err
	}
	to.set("replica", p)
	replicates := v.service != nil && v.service.Litestream
	switch {
	case p == nil && !replicates && v.service != nil:
		to.say("none: with this disk everything since the last backup elsewhere is lost")
		return nil
	case p == nil || !replicates && v.service != nil:
		return nil
	}
	text := "not yet proven"
	if !p.ProvedAt.IsZero() {
		text = fmt.Sprintf("proven %s: transaction %s, %s, %d s behind", p.ProvedAt, p.TXID, sizeText(p.Bytes),
			p.Behind)
	}
	to.say("%s", text)
	return nil
}

// replicaTroubles are those of the replica.
var replicaTroubles = []trouble{
	proofFailed("replica_proof_failed", proofReplica),
	{kind: "litestream_old", urgency: sameDay, one: fmt.Sprintf(oldLitestreamText, "$id"),
		inFile: func(v *statusView) (occurrence, error) {
			p, err := v.proofOf(proofReplica)
			if err != nil || p == nil {
				return occurrence{}, err
			}
			return occursIf(olderLitestream(p.Litestream), stamp{}, "", p.Litestream), nil
		}},
	{kind: "litestream_down", urgency: sameDay, one: "Litestream does not answer on its socket ($id)",
		advice: ": start it, so that the replica goes on", inService: litestreamDown},
}

// litestreamDown finds that Litestream, which replicates the database, does not answer on the control socket beside it.
func litestreamDown(s *server) (occurrence, error) {
	if !s.store.noCheckpoints {
		return occurrence{}, nil
	}
	path := litestreamSocket(s.store.path)
	limited, cancel := context.WithTimeout(context.Background(), statusTimeout/2)
	defer cancel()
	res, err := callSocket(limited, path, http.MethodGet, "/info")
	if res != nil {
		err = res.Body.Close()
	} else {
		err = cmp.Or(err, fs.ErrNotExist)
	}
	return occursIf(err != nil, stamp{}, "", path), nil
}

// litestreamSocket returns where Litestream's control socket is, unless an option says otherwise.
func litestreamSocket(db string) string {
	return filepath.Join(filepath.Dir(realPath(db)), "litestream.sock")
}

// proofMetrics returns how old the last proof is, of the place that counts, once a proof is due there.
func proofMetrics(st *store) []metric {
	return []metric{{"widgetd_proof_age_seconds", "gauge",
		"Seconds since restoring was proven, or since a first proof is due.", func() []string {
			p, err := st.wantedProof()
			if err != nil || p == nil {
				return nil
			}
			age := max(0, int64(st.now().Sub(p.since().Time)/time.Second))
			return []string{fmt.Sprintf("{what=%q} %d", p.What, age)}
		}}}
}

// startProofs has proofs of the replica be due from the first start with it, and removes what a killed proof has left.
func (s *server) startProofs() {
	err := removeLeftProof(s.store.path)
	if s.store.noCheckpoints {
		err = errors.Join(err, s.store.update(context.Background(), func(t *tx) error {
			t.wantProof(proofReplica)
			return nil
		}))
	}
	if err != nil {
		s.log.Info("the proofs of restoring", "error", err)
	}
}
