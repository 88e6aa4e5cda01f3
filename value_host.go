package main

import (
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var checkPage = &textCheck{pattern: "^/", of: func(s string) (code, detail string) {
	if !strings.HasPrefix(s, "/") {
		return "invalid_page", "A page is a path: it begins with /."
	}
	return "", ""
}}

// parseOrigin returns an origin in its normal form (RFC 6454): scheme and host in lower case,
// without a default port. Anything but one http or https origin is an error, "null" too.
func parseOrigin(s string) (string, error) {
	err := errors.New("an origin is a scheme and a host, such as https://www.example.com, without a path")
	if !isASCII(s) {
		return "", errors.New("a host has ASCII only: " + asBrowsersSend)
	}
	scheme, host, ok := strings.Cut(strings.ToLower(s), "://")
	if len(s) > 255 || !ok || scheme != "http" && scheme != "https" {
		return "", err
	}
	host, port, ok := cutPort(host)
	if !ok {
		return "", err
	}
	if v6, ok := strings.CutPrefix(host, "["); ok {
		addr, bad := netip.ParseAddr(strings.TrimSuffix(v6, "]"))
		if bad != nil || !strings.HasSuffix(host, "]") || !addr.Is6() || addr.Zone() != "" {
			return "", err
		}
		host = "[" + addr.String() + "]"
	} else if !validHost(host) {
		return "", err
	}
	if port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		return scheme + "://" + host, nil
	}
	return scheme + "://" + host + ":" + port, nil
}

// asBrowsersSend is what to do about the host of an address that has letters beyond ASCII.
const asBrowsersSend = "give it as a browser sends it (location.origin)"

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// validHost reports whether host is a host name as browsers send it in an Origin: labels of
// lower-case ASCII letters, digits, hyphens and underscores, separated by dots.
func validHost(host string) bool {
	return !slices.ContainsFunc(strings.Split(host, "."), func(label string) bool {
		return label == "" || strings.Trim(label, hostSymbols) != ""
	})
}

// isURLText reports whether s has only characters that may follow the host of a URL (RFC 3986, appendix A)
// and each of its percent signs is followed by two hexadecimal digits.
func isURLText(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '%':
			if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
				return false
			}
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("-._~:/?[]@!$&'()*+,;=", c) < 0:
			return false
		}
	}
	return true
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

// isNumber reports whether programs take a host with this last label for an IPv4 address, since the
// label is a decimal, octal or hexadecimal number (URL Standard of WHATWG, "ends in a number").
func isNumber(label string) bool {
	digits := strings.Trim(label, "0123456789") == ""
	return label != "" && (digits || strings.HasPrefix(label, "0x"))
}

// isHostLabel reports whether s is a label of a host name, in lower case. It accepts underscores:
// names of hosts have none, but names of services in their domains do.
func isHostLabel(s string) bool {
	return s != "" && len(s) <= maxHostLabel && s[0] != '-' && s[len(s)-1] != '-' &&
		strings.Trim(s, hostSymbols) == ""
}

const hostSymbols = "abcdefghijklmnopqrstuvwxyz0123456789-_"

// cutPort splits the host and the port of a URL; the port is "" if there is none. It reports false
// for a port that is not a number from 1 to 65535, written in digits without leading zeros.
func cutPort(authority string) (host, port string, ok bool) {
	i := strings.LastIndexByte(authority, ':')
	if i <= strings.LastIndexByte(authority, ']') { // no port; also if there is neither a colon nor a bracket
		return authority, "", true
	}
	host, port = authority[:i], authority[i+1:]
	n, err := strconv.ParseUint(port, 10, 16)
	return host, port, err == nil && n > 0 && port == strconv.FormatUint(n, 10)
}

const maxHostLabel = 63

// isContact reports whether a text is a URI of one of some schemes at which somebody can be reached.
func isContact(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Host+u.Opaque != ""
}

// hostWithPort returns the host of an address, with its port if it has one; "" for what is none, as an operator may
// have edited the row.
func hostWithPort(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}
