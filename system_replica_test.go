package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A provenService is a service with Litestream beside it whose replica is proven.
type provenService struct {
	*replicated
	bin string // programs that stand in for others
}

// newReplicated makes the directory of a service, and Litestream's configuration as docs/operating.md has it: the path
// of the replica, below a directory, has the epoch in it.
func newReplicated(t testing.TB, replica string) *replicated {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // short: the path of a socket has at most 107 bytes
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	must(t, os.Mkdir(data, 0o700))
	config := strings.Replace(documentBlock(t, "type: file"), "      path: /mnt/backup/widgetd\n",
		documentBlock(t, "path: /mnt/backup/widgetd/${WIDGETD_EPOCH}"), 1)
	writeFile(t, filepath.Join(dir, "litestream.yml"), strings.NewReplacer("/var/lib/widgetd", data,
		"/mnt/backup", cmp.Or(replica, filepath.Join(dir, "backup"))).Replace(config))
	r := &replicated{t: t, o: &operator{t: t, dir: data, env: filesIn(data)}}
	t.Cleanup(func() { r.endStream(syscall.SIGKILL) })
	return r
}

// startProven starts a service and Litestream, without load.
func startProven(t *testing.T) *provenService {
	t.Helper()
	programsOrSkip(t, "litestream")
	r := &provenService{newReplicated(t, ""), ""}
	r.o, r.bin = operatorIn(t, r.o.dir), filepath.Join(filepath.Dir(r.o.dir), "bin")
	must(t, os.Mkdir(r.bin, 0o700))
	r.o.addLeads("a@example.com")
	r.startService()
	r.startAs("0")
	return r
}

// widgetd is a command of its own process.
func (r *provenService) widgetd(args ...string) *exec.Cmd {
	args = append(args, "-db", r.o.env["WIDGETD_DB"], "-key", r.o.env["WIDGETD_KEY"])
	cmd := exec.Command(builtProgram(r.t), args...)
	cmd.Env = append(os.Environ(), "PATH="+r.bin+":"+os.Getenv("PATH"))
	return cmd
}

// verify runs 'replica verify', and requires that nothing is left of the copy.
func (r *provenService) verify(more ...string) (said string, err error) {
	r.t.Helper()
	if !slices.Contains(more, "-config") {
		more = append(more, "-config", r.config())
	}
	out, err := r.widgetd(append([]string{"replica", "verify"}, more...)...).CombinedOutput()
	if _, left := os.Lstat(proofPath(r.o.env["WIDGETD_DB"], "")); left == nil {
		r.t.Errorf("the copy is left: %s", out)
	}
	return string(out), err
}

// fails requires that the replica is not proven, and that the file and the status command say why.
func (r *provenService) fails(why string, more ...string) {
	r.t.Helper()
	said, err := r.verify(more...)
	failIf(r.t, err == nil || !strings.Contains(said, why), "%v %s, want %q\n%s", err, said, why, r.log.String())
	asks := strings.Join(needsDoing(r.o.object("status")), "\n")
	contains(r.t, asks, "the last try to restore the replica, at ", why)
}

// passes requires that the replica is proven.
func (r *provenService) passes(more ...string) map[string]any {
	r.t.Helper()
	said, err := r.verify(more...)
	failIf(r.t, err != nil, "%v %s\n%s", err, said, r.log.String())
	contains(r.t, said, "the replica was restored and is good: transaction 0")
	v := r.o.object("status")
	lacks(r.t, strings.Join(needsDoing(v), "\n"), "replica")
	return v["replica"].(map[string]any)
}

// instead puts a program in place of Litestream's for one of its commands.
func (r *provenService) instead(script string) {
	r.t.Helper()
	real, err := exec.LookPath("litestream")
	must(r.t, err)
	file := filepath.Join(r.bin, "litestream")
	must(r.t, os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\nexec "+real+" \"$@\"\n"), 0o700))
}

func TestReplica_isProvenByRestoringIt(t *testing.T) {
	t.Parallel()
	r := startProven(t)
	contains(t, r.o.do("status", "-wide"), "replica      not yet proven\n")
	lacks(t, strings.Join(needsDoing(r.o.object("status")), "\n"), "replica") // nothing is due for a day
	p := r.passes()
	failIf(t, p["proved_at"] == nil || p["litestream"] != "v0.5.18" || p["fault"] != "" ||
		p["bytes"].(float64) < 100_000 || p["behind"].(float64) > replicaWait.Seconds(), "%v", p)
	contains(t, r.o.do("status", "-wide"), "replica      proven 20", " s behind\n")

	// A proof of another directory is the same, and leaves nothing there.
	elsewhere := t.TempDir()
	r.passes("-dir", elsewhere)
	failIf(t, len(dirNames(t, elsewhere)) > 0, "left: %v", dirNames(t, elsewhere))
}

// Against a proof that fills the disk of the service, and one whose disk others fill meanwhile.
func TestReplica_thatCanNotBeRestoredIsNotGood(t *testing.T) {
	t.Parallel()
	takesLong(t, "drives Litestream for seconds")
	r := startProven(t)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		r.passes()
		r.endStream(signal)
		r.fails("what was written does not come to the replica")
		r.startAs("0")
	}
	small := smallDisk(t, 8<<20)
	r.fails("there is no room to restore it", "-dir", small)
	filling := smallDisk(t, 80<<20)
	r.instead(fmt.Sprintf(`case "$*" in *integrity-check*) cat /dev/zero >%s/fill 2>/dev/null ;; esac`, filling))
	r.fails("restoring it fails", "-dir", filling)
	for _, disk := range []string{small, filling} {
		lacks(t, strings.Join(dirNames(t, disk), " "), "proof")
	}
	a, err := send(newClient(t), "GET", r.service.base+"/widget/health", "")
	failIf(t, err != nil || a.status != 200, "health %d, %v", a.status, err)
	// Truncated just before it is restored, or Litestream, which runs, might write a whole file anew.
	backup := filepath.Join(filepath.Dir(r.o.dir), "backup")
	r.instead(`case "$*" in *integrity-check*) find ` + backup + ` -type f -exec truncate -s 200 {} + ;; esac`)
	r.fails("restoring it fails")
}

// Against a replica of another database, or of another path, that passes for ours: transactions have numbers only.
func TestReplica_ofAnotherDatabaseIsNotTakenForOurs(t *testing.T) {
	t.Parallel()
	takesLong(t, "drives Litestream for seconds")
	r, other := startProven(t), startProven(t)
	for range 8 {
		other.o.do("account", "add", "More") // so that it has higher numbers
		other.awaitReplica()
	}
	text := strings.ReplaceAll(fileText(t, r.config()), filepath.Dir(r.o.dir)+"/backup",
		filepath.Dir(other.o.dir)+"/backup")
	wrong := filepath.Join(filepath.Dir(r.o.dir), "wrong.yml")
	writeFile(t, wrong, text)
	r.fails("it does not have what was written just before", "-config", wrong)
	writeFile(t, wrong, strings.ReplaceAll(text, "/backup", "/nothing"))
	r.fails("does not have the transaction", "-config", wrong)
	r.passes()
}

// Against a replica of before a promotion: Litestream goes on to write it, and says that all is well.
func TestReplica_ofAnEarlierEpochIsNotTakenForOurs(t *testing.T) {
	t.Parallel()
	takesLong(t, "drives Litestream for seconds")
	r := startProven(t)
	r.passes()
	r.o.change(func(t *tx) error {
		t.setEpoch(epoch{Number: 1, Name: "later"})
		return t.forgetProofs()
	})
	contains(t, r.o.do("status", "-wide"), "replica      not yet proven\n")
	r.fails("the replica of the epoch 1-later does not have the transaction")

	// Nor is one that was copied to the directory of this epoch.
	backup := filepath.Join(filepath.Dir(r.o.dir), "backup", "widgetd")
	must(t, os.CopyFS(filepath.Join(backup, "1-later"), os.DirFS(filepath.Join(backup, "0"))))
	r.fails("the replica of the epoch 1-later does not have the transaction")

	// Until Litestream is started with it.
	r.endStream(syscall.SIGKILL)
	must(t, os.RemoveAll(filepath.Join(backup, "1-later")))
	must(t, os.RemoveAll(litestreamPath(r.o.env["WIDGETD_DB"])))
	r.startAs("1-later")
	r.passes()
}

// Against a restored copy, which holds everybody's data, that is left behind by a proof that was killed.
func TestReplica_copyOfAKilledProofIsRemoved(t *testing.T) {
	t.Parallel()
	takesLong(t, "drives Litestream for seconds")
	r := startProven(t)
	left := proofPath(r.o.env["WIDGETD_DB"], "")
	for _, remove := range []struct {
		by string
		do func()
	}{
		{"the next proof", func() { r.passes() }},
		{"the start of the service", func() {
			r.service.stop(syscall.SIGTERM)
			r.startService()
		}},
	} {
		r.instead(`case "$*" in *integrity-check*) touch ` + left + `/copy.db; sleep 60 ;; esac`)
		cmd := r.widgetd("replica", "verify", "-config", r.config())
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		must(t, cmd.Start())
		if !soon(func() bool { return fileExists(filepath.Join(left, "copy.db")) }) {
			t.Fatal("it restores nothing")
		}
		if info, err := os.Stat(left); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the directory of the copy: %v %v", info.Mode(), err)
		}
		// Meanwhile no other is made, and the start of a service leaves it alone.
		out, err := r.widgetd("replica", "verify", "-config", r.config()).CombinedOutput()
		failIf(t, err == nil || !strings.Contains(string(out), "another proof is being made"), "%v %s", err, out)
		failIf(t, !fileExists(filepath.Join(left, "copy.db")), "the other's copy is gone")
		must(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
		cmd.Wait()
		failIf(t, !fileExists(filepath.Join(left, "copy.db")), "nothing is left")
		must(t, os.Remove(filepath.Join(r.bin, "litestream")))
		remove.do()
		failIf(t, fileExists(left), "%s does not remove what is left", remove.by)
	}

	// A stop ends the proof, too.
	r.instead(`case "$*" in *integrity-check*) touch ` + left + `/copy.db; exec sleep 60 ;; esac`)
	cmd := r.widgetd("replica", "verify", "-config", r.config())
	must(t, cmd.Start())
	soon(func() bool { return fileExists(filepath.Join(left, "copy.db")) })
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	failIf(t, cmd.Wait() == nil || fileExists(left), "it goes on, or leaves its copy")
}

// Against a link in place of the directory of the copy, which would have other files removed.
func TestReplica_proofFollowsNoLink(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	kept := t.TempDir()
	writeFile(t, filepath.Join(kept, "kept"), "")
	must(t, os.Symlink(kept, proofPath(o.env["WIDGETD_DB"], "")))
	o.fails("is no file, so nothing was opened", "backup", filepath.Join(o.dir, "copy.db"), "-verify")
	must(t, os.Remove(proofPath(o.env["WIDGETD_DB"], "")))
	must(t, os.Symlink(kept, filepath.Join(o.dir, "other.proof")))
	_, err := openProofDir(filepath.Join(o.dir, "other.proof"))
	failIf(t, err == nil || !fileExists(filepath.Join(kept, "kept")), "a link is followed: %v", err)
	o.fails("others may write in", "replica", "verify", "-dir", "/tmp")
}

func TestReplica_namesALitestreamThatLosesPages(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{"v0.5.16": true, "v0.5.9": true, "0.4.1": true,
		"(development build)": true, "v0.5.17": false, "v0.5.18": false, "v0.6.0": false, "v1.0.0": false, "": false} {
		failIf(t, olderLitestream(version) != old, "%q: %t", version, !old)
	}
	r := startProven(t)
	r.instead(`case "$1" in info) echo '{"version": "v0.5.16"}'; exit ;; esac`)
	said, err := r.verify()
	failIf(t, err != nil, "%v %s", err, said)
	for _, text := range []string{said, strings.Join(needsDoing(r.o.object("status")), "\n")} {
		contains(t, text, "Litestream is v0.5.16; versions before 0.5.17 can lose what was committed")
	}
}

func TestBackup_isProvenByRestoringIt(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.addLeads("a@example.com")
	file := filepath.Join(o.dir, "copy.db")
	contains(t, o.do("backup", file, "-verify"), "written and checked, restored and checked again")
	contains(t, o.do("status", "-wide"), "last backup  20", "; restored and checked 20")
	failIf(t, fileExists(proofPath(o.env["WIDGETD_DB"], "")), "the copy is left")
	// What was there before is no proof.
	command := allCommands()[0]
	e := &env{ctx: t.Context(), getenv: func(name string) string { return o.env[name] }, stderr: io.Discard,
		nouns: nouns(), now: time.Now, uid: os.Geteuid(), command: &command,
		values: map[string]string{"db": o.env["WIDGETD_DB"], "key": o.env["WIDGETD_KEY"]}}
	_, err := e.prove(proofBackup, "", func(p *proofRun) error { return restoreBackup(file, p.copy) })
	failIf(t, err == nil || !strings.Contains(err.Error(), "it does not have what was written just before"), "%v", err)
	contains(t, strings.Join(needsDoing(o.object("status")), "\n"), "the last try to restore the backup, at 20")
	// One with fewer rows, or more, is not either, whatever else it has.
	for _, query := range []string{`DELETE FROM licenses`, `INSERT INTO accounts (id, name, created_at)
		VALUES ('acct_1', 'x', '2026-01-01T00:00:00Z')`} {
		o.do("license", "add", "-account", o.account, "-product", "kds")
		_, err = e.prove(proofBackup, "", func(p *proofRun) error {
			err := p.st.backup(filepath.Join(o.dir, "again.db"), nil)
			if err == nil {
				err = os.Rename(filepath.Join(o.dir, "again.db"), p.copy)
			}
			raw(t, p.copy, `DELETE FROM license_keys; DELETE FROM license_seats; `+query)
			return err
		})
		failIf(t, err == nil || !strings.Contains(err.Error(), "accounts, licences, orders and payments"), "%v", err)
	}
}

func TestHealth_warnsWhenRestoringWasNotProvenForADay(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]storeOptions{proofReplica: {noCheckpoints: true}, proofBackup: {}} {
		inBubble(t, func(t *testing.T, s *service) {
			is := func(when, status, output string) {
				t.Helper()
				time.Sleep(healthInterval)
				v := s.get("/widget/health").is(200).json()
				failIf(t, v["status"] != status || output != "" && v["output"] != output, "%s %s: %v", what, when, v)
			}
			s.reopen(o)
			is("before anything is due", healthPass, "")
			time.Sleep(48 * time.Hour)
			is("before anything is due, later", healthPass, "")
			s.change(func(t *tx) error { t.wantProof(what); return nil })
			time.Sleep(proofOverdue - time.Minute)
			is("on the first day", healthPass, "")
			time.Sleep(2 * time.Minute)
			is("after the first day", healthWarn, faultsUnproven[what])
			s.change(func(t *tx) error { t.endProof(&proof{What: what, Fault: "it failed"}); return nil })
			is("after a try that failed", healthWarn, faultsUnproven[what])
			s.change(func(t *tx) error { t.endProof(&proof{What: what}); return nil })
			is("after a proof", healthPass, "")
			s.change(func(t *tx) error { t.wantProof(what); return nil }) // as each start does
			time.Sleep(proofOverdue + time.Minute)
			is("a day later", healthWarn, faultsUnproven[what])
		})
	}
}

// A follower keeps a copy of the database of a provenService up to date, on a machine of its own.
type follower struct {
	r   *provenService
	db  string
	cmd *exec.Cmd
	*standbyMachine
	said runningLog
}

// newFollower makes a copy, and its standby, without starting that.
func newFollower(r *provenService, name string) *follower {
	r.t.Helper()
	dir := filepath.Join(filepath.Dir(r.o.dir), name)
	must(r.t, os.Mkdir(dir, 0o700))
	f := &follower{r: r, db: filepath.Join(dir, "widgetd.db")}
	config := filepath.Join(dir, "litestream.yml")
	writeFile(r.t, config, strings.ReplaceAll(fileText(r.t, r.config()), r.o.dir, dir))
	keys, err := loadKeyring(r.o.env["WIDGETD_KEY"])
	must(r.t, err)
	f.standbyMachine = newStandbyMachine(r.t, f.db, keys, &f.said)
	f.pairing.config = config
	f.start()
	r.t.Cleanup(func() { f.cmd.Process.Kill() })
	return f
}

// start starts Litestream, and waits until the copy has all that the replica has.
func (f *follower) start() {
	f.r.t.Helper()
	f.cmd = exec.Command("env", epochVariable+"=0", "litestream", "restore", "-f", "-follow-interval", "50ms",
		"-config", f.pairing.config, f.db)
	must(f.r.t, f.cmd.Start())
	if !soon(func() bool { _, err := copiedTo(f.r.t.Context(), f.db, f.pairing.config); return err == nil }) {
		f.r.t.Fatal("the copy does not follow")
	}
}

func TestReplica_followerThatStallsIsAnAlarm(t *testing.T) {
	t.Parallel()
	r := startProven(t)
	f := newFollower(r, "one")
	now := time.Now()
	after := func(d time.Duration) string {
		t.Helper()
		f.pairing.compare(t.Context(), now.Add(d))
		f.looks()
		return f.healthReport().Output
	}
	equal(t, "a quiet hour", after(time.Hour), reasonStandby)

	must(t, f.cmd.Process.Signal(syscall.SIGSTOP))
	r.o.do("account", "add", "New")
	r.awaitReplica()
	equal(t, "at first", after(0), reasonStandby)
	equal(t, "after four minutes", after(4*time.Minute), reasonStandby)
	equal(t, "after five minutes", after(5*time.Minute), reasonStandby+", and "+faultStalled)
	contains(t, f.said.String(), faultStalled)
	equal(t, "until it follows", after(6*time.Minute), reasonStandby+", and "+faultStalled)

	// The machine that serves hears of it.
	server := newService(t)
	server.keys = f.keys.Load()
	server.server.keys.Store(server.keys)
	web := httptest.NewServer(f)
	t.Cleanup(web.Close)
	p, err := server.server.joinPair(web.URL)
	must(t, err)
	p.check(t.Context())
	equal(t, "health of the machine that serves", server.server.healthReport().Output, reasonBehind)

	must(t, f.cmd.Process.Kill()) // as its unit does, which then starts it again
	f.cmd.Wait()
	beside := []string{"-config", f.pairing.config, "-db", f.db, "-key", r.o.env["WIDGETD_KEY"]}
	out, err := exec.Command(builtProgram(t), append([]string{"promote"}, beside...)...).CombinedOutput()
	failIf(t, err == nil, "a copy that lacks something is promoted")
	contains(t, string(out), "was not promoted: the copy has come to the transaction ", "; or add -force")
	f.start()
	contains(t, runProgram(t, builtProgram(t), append([]string{"replica", "wait"}, beside...)...),
		"the copy has all that the replica has, up to the transaction 0")
	equal(t, "when it follows", after(7*time.Minute), reasonStandby)
	p.check(t.Context())
	equal(t, "health of the machine that serves, then", server.server.healthReport().Output, "")

	// A replica that can't be read is an alarm, too, and no reason to end anything.
	must(t, os.Rename(filepath.Join(filepath.Dir(r.o.dir), "backup"), filepath.Join(filepath.Dir(r.o.dir), "moved")))
	writeFile(t, f.pairing.config, "nonsense: [")
	after(0)
	equal(t, "without a replica", after(5*time.Minute), reasonStandby+", and "+faultStalled)
	must(t, f.cmd.Process.Signal(syscall.Signal(0)))
}

// Against the status command opening the copy on a standby, which nobody may.
func TestStatus_asksTheStandbyAndOpensNoDatabase(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db := o.env["WIDGETD_DB"]
	writeFile(t, db, "pages of different transactions")
	writeFile(t, followerPath(db), "0000000000000009")
	cmd := exec.Command(builtProgram(t), "serve", "-standby", "-addr", "127.0.0.1:0", "-log", "json", "-db", db, "-key",
		o.env["WIDGETD_KEY"])
	cmd.Env = append(os.Environ(), "LITESTREAM_CONFIG="+filepath.Join(o.dir, "none.yml"))
	p := start(t, cmd)
	status := func(more ...string) string { // of the same version
		args := append([]string{"status", "-db", db, "-key", o.env["WIDGETD_KEY"]}, more...)
		cmd := exec.Command(builtProgram(t), args...)
		out, _ := cmd.CombinedOutput()
		return fmt.Sprint(string(out), "exit status ", cmd.ProcessState.ExitCode())
	}
	contains(t, status(), "health       pass: this machine is the standby\n", "needs doing      none\n")
	contains(t, status("-check"), "ok: nothing needs doing", "exit status 0")
	for path, want := range map[string]string{
		"/v1/widget/health": `,"output":"this machine is the standby","standby":true,"checks":{}}`,
		"/livez":            "200 alive\n",
		"/v1/widget/leads":  "503 ", "/peer/": "404 ", "/pay/x": "503 ", "/": "503 "} {
		a, err := send(newClient(t), "GET", strings.TrimSuffix(p.base, "/v1")+path, "")
		must(t, err)
		contains(t, fmt.Sprint(a.status, " ", a.body), want)
		equal(t, path+": it may be cached", a.header.Get("Cache-Control"), "no-store")
	}
	must(t, p.stop(syscall.SIGTERM))
	contains(t, status("-check"), "the service is not running", fmt.Sprint("exit status ", int(exitNotRunning)))
	equal(t, "the database", fileText(t, db), "pages of different transactions")
}

// A replicated service has Litestream beside it, with the configuration of docs/operating.md.
type replicated struct {
	t         testing.TB
	o         *operator
	service   *process
	stream    *exec.Cmd
	log       strings.Builder
	load      *load
	confirmed map[string]string // what was acknowledged before replication was last confirmed
}

func (r *replicated) config() string {
	return filepath.Join(filepath.Dir(r.o.dir), "litestream.yml")
}

func (r *replicated) startService() {
	r.t.Helper()
	r.service = serveProcess(r.t, r.o, "-litestream")
	if r.load != nil {
		r.load.base.Store(&r.service.base)
	}
}

// startStream starts Litestream with an epoch, and startAs waits until it replicates.
func (r *replicated) startStream(epoch string) {
	r.t.Helper()
	r.stream = exec.Command("env", epochVariable+"="+epoch, "litestream", "replicate", "-config", r.config())
	r.stream.Stdout, r.stream.Stderr = &r.log, &r.log
	must(r.t, r.stream.Start())
}

func (r *replicated) startAs(epoch string) {
	r.t.Helper()
	r.startStream(epoch)
	r.awaitReplica()
}

// awaitReplica waits until the replica has everything.
func (r *replicated) awaitReplica() {
	r.t.Helper()
	if !soon(func() bool { // it may just be starting
		return exec.Command("litestream", "sync", "-wait", "-socket", filepath.Join(r.o.dir, "litestream.sock"),
			r.o.env["WIDGETD_DB"]).Run() == nil
	}) {
		r.t.Fatalf("replication is not confirmed\n%s", r.log.String())
	}
}

// confirm lets Litestream replicate everything and notes what that holds.
func (r *replicated) confirm() {
	r.t.Helper()
	before := r.load.sofar()
	r.awaitReplica()
	r.confirmed = before
}

func (r *replicated) endStream(signal syscall.Signal) {
	if r.stream == nil {
		return
	}
	r.stream.Process.Signal(signal)
	r.stream.Wait()
	r.stream = nil
}

// restore does what docs/operating.md says.
func (r *replicated) restore() {
	r.t.Helper()
	program, err := exec.LookPath("litestream")
	must(r.t, err)
	asked := asOnAServer(r.t, r.o, documentBlock(r.t, "restore -replica"),
		map[string]string{"litestream": fmt.Sprintf("%s=0 LITESTREAM_CONFIG=%s exec %s \"$@\"", epochVariable,
			r.config(), program)})
	if asked != "stop widgetd.socket widgetd.service litestream\nstart litestream widgetd.socket widgetd.service\n" {
		r.t.Errorf("systemd was asked %q", asked)
	}
}

// compare holds the restored rows against those that were confirmed.
func (r *replicated) compare(when string) {
	r.t.Helper()
	lacks, leads := missing(r.t, r.o.env["WIDGETD_DB"], r.confirmed)
	if len(lacks) > 0 {
		r.t.Errorf("%s: of %d leads whose replication was confirmed %d are lost: %q\n%s",
			when, len(r.confirmed), len(lacks), lacks[:min(5, len(lacks))], r.log.String())
	}
	later, _ := missing(r.t, r.o.env["WIDGETD_DB"], r.load.ids)
	r.t.Logf("%s: of %d confirmed leads %d are lost, of %d acknowledged after that %d; %d are restored", when,
		len(r.confirmed), len(lacks), len(r.load.ids)-len(r.confirmed), len(later)-len(lacks), leads)
}

// The service and Litestream are killed while others write, and their disk is lost, but for the key file.
func TestLitestream_givesBackWhatItConfirmedAfterTheDiskIsLost(t *testing.T) {
	t.Parallel()
	takesLong(t, "drives Litestream for seconds")
	r := startProven(t)
	r.load = startLoad(t, r.service.base, "first", 4, 3*time.Millisecond)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		r.load.grows(size(30, 200))
		r.endStream(signal)
		r.load.grows(size(20, 150)) // while nobody replicates
		r.service.stop(signal)
		r.startService()
		r.startAs("0")
		r.load.grows(size(20, 150))
		r.confirm()
	}
	r.load.grows(size(10, 50))
	r.endStream(syscall.SIGKILL)
	r.service.stop(syscall.SIGKILL)
	r.load.stop()
	for _, name := range dirNames(t, r.o.dir) {
		if name != "widgetd.key" {
			must(t, os.RemoveAll(filepath.Join(r.o.dir, name)))
		}
	}
	r.restore()
	r.compare("after losing the disk")

	// And the restored one is replicated again.
	r.startService()
	r.startAs("0")
	r.passes()
}

// restoreKills are the system calls that a restore is killed at instead of making them: the first one on a file of the
// database's directory.
var restoreKills = []struct{ calls, file string }{
	{"mkdir,mkdirat", "widgetd.proof"}, {"write,pwrite64", "widgetd.proof/copy.db"},
	{"link,linkat", "widgetd.db-wal"}, {"link,linkat", "widgetd.db-identity"},
	{"rename,renameat,renameat2", "widgetd.db"}, {"unlink,unlinkat", "widgetd.db-wal"},
	{"unlink,unlinkat", "widgetd.db-identity"},
	{"rename,renameat,renameat2", "widgetd.proof/copy.db"}, {"unlink,unlinkat", "widgetd.proof"},
}

func TestRestore_killedAtAnyStepLeavesOneOfBothWholeAndNamedAndASecondOneFinishes(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "strace")
	o := newOperator(t)
	o.keepCopy("copy.db")
	o.addLeads("ada@example.com")
	o.close()
	killed := onlyInTheLog(t, o.env["WIDGETD_DB"], `UPDATE accounts SET name = 'in the log'`)
	copied := fileBytes(t, filepath.Join(o.dir, "backup", "copy.db"))
	writeFile(t, filepath.Join(filepath.Dir(killed), "copy.db"), copied)
	writeFile(t, filepath.Join(filepath.Dir(killed), "widgetd.key"), fileBytes(t, o.env["WIDGETD_KEY"]))
	writeFile(t, identityPath(killed), identityOf(t, filepath.Join(copyFiles(t, filepath.Dir(killed)), "widgetd.db")))
	before, after := wholeContent(t, killed), contentOf(t, filepath.Join(o.dir, "backup", "copy.db"), nil)
	states := map[string]int{}
	for i, k := range restoreKills {
		if i%3 > 0 && !inFull() {
			continue
		}
		dir := copyFiles(t, filepath.Dir(killed))
		must(t, os.Chmod(dir, 0o700))
		db := filepath.Join(dir, "widgetd.db")
		restore := []string{builtProgram(t), "restore", filepath.Join(dir, "copy.db"), "-force", "-db", db, "-key",
			filepath.Join(dir, "widgetd.key")}
		cmd := exec.Command("strace", append([]string{"-f", "-o", os.DevNull, "-P", filepath.Join(dir, k.file), "-e",
			"trace=" + k.calls, "-e", "inject=" + k.calls + ":signal=SIGKILL:when=1"}, restore...)...)
		what := "killed at " + k.calls + " of " + k.file
		if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() > 0 {
			t.Fatalf("%s: %v %s", what, err, out)
		}
		aside := movedAsideOf(db)
		switch {
		case len(aside) == 0:
			states["before"]++
			sameContent(t, what+", in place", wholeContent(t, db), before)
		case fileExists(db):
			states["after"]++
			sameContent(t, what+", in place", wholeContent(t, db), after)
		default:
			states["between"]++
			out, err := exec.Command(builtProgram(t), "check", "-db", db).CombinedOutput()
			failIf(t, err == nil, "%s", what)
			contains(t, string(out), "run 'widgetd restore': what was there is "+aside[0])
		}
		if out, err := exec.Command(restore[0], restore[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s, and once more: %v %s", what, err, out)
		}
		sameContent(t, what+", and once more", contentOf(t, db, nil), after)
		if left := dirNames(t, dir); fileExists(proofPath(db, "")) || fileSize(db+"-wal") > 0 {
			t.Errorf("%s: %q are left", what, left)
		}
		if len(aside) == 0 {
			aside = movedAsideOf(db)
		}
		sameContent(t, what+", aside", wholeContent(t, aside[0]), before)
	}
	t.Logf("killed: %v", states)
	if inFull() && (states["before"] < 4 || states["between"] < 3 || states["after"] < 1) {
		t.Error("that is not every moment")
	}
}

func TestRestore_withoutRoomLeavesTheDatabaseAsItWas_disk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, 4<<20)
	o := operatorIn(t, dir)
	file := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.Chmod(filepath.Dir(file), 0o700))
	o.do("backup", file)
	o.addLeads("ada@example.com")
	filler := filepath.Join(dir, "filler")
	fillDisk(t, filler)
	before, refusals := directory(t, dir), 0
	for {
		_, err := o.try("restore", file, "-force")
		if err == nil {
			break
		}
		contains(t, err.Error(), file+" can't be restored: ")
		failIf(t, !matches("no space left on device|disk is full", err.Error()), "%v", err)
		for name, text := range directory(t, dir) {
			failIf(t, name != "filler" && text != before[name], "%s was changed, or left", name)
		}
		refusals++
		must(t, os.Truncate(filler, fileSize(filler)-int64(size(400, 40))<<10))
	}
	equal(t, "put aside", len(o.aside()), 1)
	contains(t, o.do("check"), "ok: ")
	if refusals < 2 {
		t.Errorf("%d refusals", refusals)
	}
}
