package main

import (
	"fmt"
	"io"
	"net/url"
	"strings"
)

// The command that calls any route.
var apiCommands = []command{
	{"api", "METHOD PATH [JSON]", "call a route as the operator and print its answer, as in 'widgetd api GET " +
		"/licenses?status=active'; - for JSON reads standard input", []option{
		{name: "all", help: "print the rows of all pages, one JSON object a line",
			generalHelp: "print or list everything"}, optOutboundAllow,
	}, callAny},
}

// callAny runs api.
func callAny(e *env) error {
	return e.asOperator((*env).keyFile, func(o *routeCaller) error {
		r, err := o.find(strings.ToUpper(e.args[0]), e.args[1])
		if err == nil && len(e.args) > 2 {
			r.body, err = e.jsonArgument(e.args[2])
		}
		switch {
		case err != nil:
			return err
		case len(e.args) > 2 && !o.route(r.route).takesJSON():
			return usageError(printable(r.route) + " takes no JSON")
		case e.on("all"):
			return listCommand{}.printAll(e, o.pages(r))
		}
		answer, err := o.call(r)
		if err == nil {
			_, err = e.stdout.Write(answer)
		}
		return err
	})
}

// jsonArgument returns the JSON that an argument is, or standard input for "-".
func (e *env) jsonArgument(typed string) (string, error) {
	if typed != "-" {
		return typed, nil
	}
	text, err := io.ReadAll(io.LimitReader(e.stdin, maxRawBody+1))
	return string(text), err
}

// find returns the request for the route that programs call by a method and a path, which may have a query. Of several
// routes with that path it is the one with the fewest wildcards. Errors: usageError.
func (o *routeCaller) find(method, address string) (*routeRequest, error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, usageError("this is no path: " + printable(address))
	}
	typed := strings.Split(strings.TrimPrefix(at.Path, "/v1"), "/")
	var found *routeRequest
	for _, rt := range o.server.routes {
		parts := strings.Split(rt.path(), "/")
		r := &routeRequest{route: rt.pattern, path: map[string]string{}, query: at.Query(), members: map[string]any{}}
		if rt.method() != method || rt.page != "" || rt.form != "" || rt.raw || len(parts) != len(typed) {
			continue
		}
		differs := false
		for i, part := range parts {
			if name, is := strings.CutPrefix(part, "{"); is {
				r.path[strings.TrimSuffix(name, "}")] = typed[i]
			} else {
				differs = differs || part != typed[i]
			}
		}
		if !differs && (found == nil || len(r.path) < len(found.path)) {
			found = r
		}
	}
	if found == nil {
		return nil, usageError(fmt.Sprintf("there is no route %s %s: /docs lists them", printable(method),
			printable(at.Path)))
	}
	return found, nil
}
