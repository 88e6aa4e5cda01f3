// Command calls calls every operation of the document with the client that oapi-codegen generated from
// it. The environment names the service and what .ci/clients/run has made there.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"widgetd-clients/client"
)

// An answer is what every generated response type has.
type answer interface{ StatusCode() int }

// need ends the program unless a call succeeded.
func need[A answer](name string, wanted int) func(a A, err error) A {
	return func(a A, err error) A {
		if err != nil || a.StatusCode() != wanted {
			text, _ := json.Marshal(a)
			fail("%s: %v %s", name, err, text)
		}
		fmt.Println(a.StatusCode(), name)
		return a
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

// newClient makes a client that sends a header with each request; "" is none.
func newClient(server, header, value string) *client.ClientWithResponses {
	c, err := client.NewClientWithResponses(server, client.WithRequestEditorFn(
		func(_ context.Context, r *http.Request) error {
			if header != "" {
				r.Header.Set(header, value)
			}
			return nil
		}))
	if err != nil {
		fail("%v", err)
	}
	return c
}

func ptr[T any](v T) *T { return &v }

func main() {
	ctx := context.Background()
	base, widget := os.Getenv("BASE"), os.Getenv("WIDGET")
	address, err := url.Parse(base)
	if err != nil {
		fail("%v", err)
	}
	anyone := newClient(base, "", "")
	root := newClient(address.Scheme+"://"+address.Host, "", "")
	operator := newClient(base, "Authorization", "Bearer "+os.Getenv("TOKEN"))
	callLeads(ctx, anyone, operator)
	callLicenses(ctx, base, anyone, operator)

	need[*client.SendWidgetEventsResponse]("sendWidgetEvents", 204)(anyone.SendWidgetEventsWithResponse(ctx,
		&client.SendWidgetEventsParams{Origin: ptr(os.Getenv("ORIGIN"))},
		client.WidgetEventsRequest{Widget: widget, Events: []client.WidgetEvent{{Type: "view"}, {Type: "click", Item: ptr("Rösti")}}}))
	stats := need[*client.GetWidgetStatsResponse]("getWidgetStats", 200)(anyone.GetWidgetStatsWithResponse(ctx,
		&client.GetWidgetStatsParams{Widget: &widget, Interval: ptr(client.GetWidgetStatsParamsInterval("week"))}))
	if one, err := stats.JSON200.AsWidgetStats(); err != nil || one.Totals.Clicks < 1 {
		fail("statistics: %v %s", err, stats.Body)
	}

	need[*client.GetHealthResponse]("getHealth", 200)(anyone.GetHealthWithResponse(ctx))
	need[*client.GetOpenAPIResponse]("getOpenAPI", 200)(anyone.GetOpenAPIWithResponse(ctx, nil))
	need[*client.GetOpenAPIResponse]("getOpenAPI at the root", 200)(root.GetOpenAPIWithResponse(ctx, nil))
	need[*client.GetKeysResponse]("getKeys", 200)(root.GetKeysWithResponse(ctx))
	need[*client.GetLivenessResponse]("getLiveness", 200)(root.GetLivenessWithResponse(ctx))
	gone, err := root.GetLegacyWithResponse(ctx, "leads")
	if err != nil || gone.HTTPResponse.Header.Get("Sunset") == "" {
		fail("an old path: %v", err)
	}
	fmt.Println(gone.StatusCode(), "getLegacy")
}

func callLeads(ctx context.Context, anyone, operator *client.ClientWithResponses) {
	lead := need[*client.CreateLeadResponse]("createLead", 200)(anyone.CreateLeadWithResponse(ctx,
		&client.CreateLeadParams{IdempotencyKey: ptr(fmt.Sprint(time.Now().UnixNano()))},
		client.LeadRequest{Type: "newsletter", Email: "guest2@example.com", Page: ptr("/lunch")}))
	leads := need[*client.ListLeadsResponse]("listLeads", 200)(operator.ListLeadsWithResponse(ctx,
		&client.ListLeadsParams{Limit: ptr(10)}))
	if len(leads.JSON200.Data) == 0 || leads.JSON200.Data[0].Id != lead.JSON200.Id {
		fail("the lead is not listed: %s", leads.Body)
	}
	need[*client.EraseLeadsResponse]("eraseLeads", 200)(operator.EraseLeadsWithResponse(ctx, nil,
		client.EraseRequest{Email: "guest2@example.com"}))
	wrong := need[*client.CreateLeadResponse]("createLead, refused", 422)(anyone.CreateLeadWithResponse(ctx, nil,
		client.LeadRequest{Type: "News letter", Email: "guest2@example.com"}))
	if p := wrong.ApplicationproblemJSON422; p == nil || p.Code != "validation_failed" {
		fail("no problem: %s", wrong.Body)
	}
}

func callLicenses(ctx context.Context, base string, anyone, operator *client.ClientWithResponses) {
	issued := need[*client.CreateLicenseResponse]("createLicense", 200)(operator.CreateLicenseWithResponse(ctx, nil,
		client.NewLicense{AccountId: os.Getenv("ACCOUNT"), Product: "kitchen-display", MaxDevices: ptr(2), DurationDays: ptr(30)})).JSON200
	id := issued.Id
	need[*client.ListLicensesResponse]("listLicenses", 200)(operator.ListLicensesWithResponse(ctx, &client.ListLicensesParams{Q: &issued.Key}))
	need[*client.GetLicenseResponse]("getLicense", 200)(operator.GetLicenseWithResponse(ctx, id, nil))
	need[*client.UpdateLicenseResponse]("updateLicense", 200)(operator.UpdateLicenseWithResponse(ctx, id, client.LicenseTerms{GraceDays: ptr(7)}))

	active := need[*client.ActivateLicenseResponse]("activateLicense", 200)(anyone.ActivateLicenseWithResponse(ctx, nil,
		client.ActivationRequest{LicenseKey: &issued.Key, Fingerprint: ptr("kitchen-1")})).JSON200
	device := newClient(base, "Authorization", "Bearer "+active.Token)
	verdict := need[*client.VerifyLicenseResponse]("verifyLicense", 200)(device.VerifyLicenseWithResponse(ctx, client.VerificationRequest{})).JSON200
	if !verdict.Valid || verdict.License == nil || verdict.License.Seats.Used != 1 {
		fail("verify: %+v", verdict)
	}
	devices := need[*client.ListDevicesResponse]("listDevices", 200)(operator.ListDevicesWithResponse(ctx, id, nil)).JSON200
	need[*client.DeactivateLicenseResponse]("deactivateLicense", 200)(device.DeactivateLicenseWithResponse(ctx, client.DeactivationRequest{}))
	need[*client.ReleaseDeviceResponse]("releaseDevice", 204)(operator.ReleaseDeviceWithResponse(ctx, id, devices.Data[0].Id, nil))

	need[*client.RenewLicenseResponse]("renewLicense", 200)(operator.RenewLicenseWithResponse(ctx, id, nil, client.Renewal{}))
	need[*client.RotateLicenseKeyResponse]("rotateLicenseKey", 200)(operator.RotateLicenseKeyWithResponse(ctx, id, nil, client.KeyRotation{EndTokens: ptr(true)}))
	need[*client.ResetLicenseTransfersResponse]("resetLicenseTransfers", 200)(operator.ResetLicenseTransfersWithResponse(ctx, id, client.NoMembers{}))
	need[*client.SuspendLicenseResponse]("suspendLicense", 200)(operator.SuspendLicenseWithResponse(ctx, id, client.StateChange{Reason: ptr("a test")}))
	need[*client.ReinstateLicenseResponse]("reinstateLicense", 200)(operator.ReinstateLicenseWithResponse(ctx, id, client.StateChange{}))
	need[*client.RevokeLicenseResponse]("revokeLicense", 200)(operator.RevokeLicenseWithResponse(ctx, id, client.StateChange{}))
	events := need[*client.ListEventsResponse]("listEvents", 200)(operator.ListEventsWithResponse(ctx,
		&client.ListEventsParams{LicenseId: &id, Type: ptr(client.EventType("license.revoked"))})).JSON200
	if len(events.Data) != 1 || events.Data[0].Actor != "operator" {
		fail("events: %+v", events)
	}
}
