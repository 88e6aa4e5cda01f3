package main

import (
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Whether calls fail for a reason that is this machine's or its network's, rather than that of who is called.

// A callFault is why a call had no answer, if that may be the fault of this machine or its network; "": it had one.
type callFault string

const (
	callDNS        callFault = "names of hosts can't be looked up"
	callUnverified callFault = "no authority that is known here has signed the certificates"
	callUnroutable callFault = "the network can't be reached"
	callTimeout    callFault = "nothing answers in time"
	callBroken     callFault = "connections are refused or broken"
)

// callFaults are the faults of calls, with what to do when most calls to different hosts fail alike.
var callFaults = map[callFault]string{
	callDNS:        "'getent hosts example.com' must print an address: look at /etc/resolv.conf",
	callUnverified: "'apt-get install ca-certificates', then restart the service",
	callUnroutable: "'ip route' must print a default route",
	callTimeout:    "'curl -sI https://example.com' shows whether a firewall is in the way",
	callBroken:     "'curl -sI https://example.com' shows whether a firewall is in the way",
}

// What the log and status say of calls.
const (
	callsFailAlike = "most calls to different hosts fail alike"
	noRootsText    = "this machine knows no certificate authority, so nothing can be called over https"
)

// rootPlaces are the files and directories in which crypto/x509 looks for certificate authorities on Linux, unless
// SSL_CERT_FILE and SSL_CERT_DIR name others.
var rootPlaces = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/cert.pem", "/etc/ssl/certs", "/etc/pki/tls/certs"}

// noRoots reports whether this machine knows no certificate authority: all places are missing or empty. It reads no
// certificate, since a start would take twice as long, and hold them in memory for good.
func noRoots(getenv func(string) string) bool {
	places := slices.Concat(strings.Split(getenv("SSL_CERT_DIR"), ":"), []string{getenv("SSL_CERT_FILE")})
	if getenv("SSL_CERT_FILE") == "" || getenv("SSL_CERT_DIR") == "" {
		places = append(places, rootPlaces...)
	}
	return !slices.ContainsFunc(places, func(place string) bool {
		info, err := os.Stat(place)
		if err != nil || !info.IsDir() {
			return err == nil && info.Size() > 0
		}
		inside, _ := filepath.Glob(filepath.Join(place, "*"))
		return len(inside) > 0
	})
}

// faultOfCall returns the fault of a call that has ended with an error. says is false if the error tells nothing about
// the network: that a name does not exist, or what the host or its owner is to blame for.
func faultOfCall(err error) (fault callFault, says bool) {
	var lookup *net.DNSError
	var known *outboundError
	errors.As(err, &known)
	switch {
	case errors.As(err, &lookup):
		return callDNS, !lookup.IsNotFound
	case errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.SystemRootsError)):
		return callUnverified, true
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETDOWN),
		errors.Is(err, syscall.EPERM):
		return callUnroutable, true
	case known.reason == outboundTimeout:
		return callTimeout, true
	case known.reason == outboundNoConnect:
		return callBroken, true
	}
	return "", known.reason == outboundTLS || known.reason == outboundTooLarge || known.reason == outboundMalformed
}

// hostOf returns the host of a URL without its port.
func hostOf(normal string) string {
	u, err := url.Parse(normal)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

const (
	reachHosts  = 20               // how many hosts a reachability remembers, those that were called last
	reachFor    = 15 * time.Minute // for how long it remembers them
	reachLeast  = 3                // hosts that must fail alike before that is told
	reachLasted = 10 * time.Second // for which they must have failed before that is told
)

// A reachability tells whether most calls to different hosts fail alike, which is the fault of this machine or its
// network rather than theirs. It compares the last call to each of the reachHosts hosts that were called last.
type reachability struct {
	mu    sync.Mutex
	calls []lastCall // the latest last
	fault callFault  // with which most of them have failed; "": with none
	since time.Time
}

type lastCall struct {
	host  string
	at    time.Time
	fault callFault
}

// note records how a call has ended.
func (r *reachability) note(host string, fault callFault) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = slices.DeleteFunc(r.calls, func(c lastCall) bool { return c.host == host || now.Sub(c.at) > reachFor })
	if len(r.calls) == reachHosts {
		r.calls = slices.Delete(r.calls, 0, 1)
	}
	r.calls = append(r.calls, lastCall{host, now, fault})
	found, counts := callFault(""), map[callFault]int{}
	for _, c := range r.calls {
		counts[c.fault]++
	}
	for known, n := range counts {
		if known != "" && 2*n > len(r.calls) && (n >= reachLeast || known == r.fault) {
			found = known
		}
	}
	if found != r.fault {
		r.fault, r.since = found, now
	}
}

// failing returns the fault with which most calls have failed for reachLasted, and since when; "": there is none.
func (r *reachability) failing() (fault callFault, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault == "" || time.Since(r.since) < reachLasted {
		return "", time.Time{}
	}
	return r.fault, r.since
}
