/* SPDX-License-Identifier: Apache-2.0 */
/* walk: a round through the documents of the BMC. */
#include <stdlib.h>
#include <string.h>

#include "base/sum/sum.h"
#include "redfish_priv.h"

#define LOOK_AGAIN     240 /* Rounds after which documents that gave nothing are read again */
#define REDIRECTS_MOST 3

/* ---- documents that are read for nothing ---- */

static bool is_skipped(const struct redfish_bmc *b, const char *path)
{
	uint64_t sum = sum64(path, strlen(path));
	for (size_t i = 0; i < b->n_skip; i++)
		if (b->skip[i] == sum)
			return true;
	return false;
}

/* A chassis has hundreds of sensors, and few of them are of power. */
static void sensor_note(struct redfish_bmc *b)
{
	if (b->round->at.role == REDFISH_SENSOR && !b->round->gave_reading && b->n_skip < REDFISH_SKIP)
		b->skip[b->n_skip++] = sum64(b->round->at.path, strlen(b->round->at.path));
}

/* ---- links and readings ---- */

static void link_add(void *user, const struct redfish_link *link)
{
	struct redfish_bmc *b = user;
	struct redfish_round *r = b->round;
	if (link->role == REDFISH_SESSION_LIST) {
		memcpy(b->session.list, link->path, sizeof b->session.list);
		return;
	}
	if (link->role == REDFISH_SENSOR && is_skipped(b, link->path))
		return;
	if (r->n == REDFISH_MAX_WAITING) {
		r->lost++;
		return;
	}
	r->waiting[(r->first + r->n++) % REDFISH_MAX_WAITING] = *link;
}

/* Find the reading of the same thing, which Power and EnvironmentMetrics both may have; NULL: it is the first. */
static struct power_reading *reading_find(struct redfish_round *r, const struct power_reading *like)
{
	for (size_t i = 0; i < r->n_reading; i++)
		if (power_same(&r->reading[i], like))
			return &r->reading[i];
	return NULL;
}

static void reading_add(void *user, const struct power_reading *reading)
{
	struct redfish_bmc *b = user;
	struct redfish_round *r = b->round;
	struct power_reading fresh = *reading;
	fresh.time = cgn_loop_now(b->loop);
	(void)cgn_str_copyz(fresh.node, sizeof fresh.node, cgn_str_of(b->node));
	struct power_reading *to = reading_find(r, &fresh);
	r->gave_reading = true;
	if (to != NULL && fresh.state != POWER_FRESH)
		return;
	if (to == NULL && r->n_reading == REDFISH_MAX_READINGS) {
		r->lost++;
		return;
	}
	*(to != NULL ? to : &r->reading[r->n_reading++]) = fresh;
}

static const struct redfish_ops walk_ops = {.on_link = link_add, .on_reading = reading_add};

/* ---- documents ---- */

static void round_next(struct redfish_bmc *b);
static void on_document(struct redfish_bmc *b, const struct redfish_answer *a);

static void fault_note(struct redfish_round *r, const char *path, const char *why)
{
	if (r->fault[0] == '\0')
		(void)snprintf(r->fault, sizeof r->fault, "%.80s%s%.110s", path, path[0] != '\0' ? ": " : "",
			why);
}

/* Without its root nothing of a BMC can be found; anything else may be missing. */
static void document_fail(struct redfish_bmc *b, const char *why)
{
	struct redfish_round *r = b->round;
	char text[300];
	if (r->at.role == REDFISH_SERVICE || r->at.role == REDFISH_CHASSIS_LIST) {
		(void)snprintf(text, sizeof text, "%.80s: %.200s", r->at.path, why);
		redfish_round_fail(b, CGN_UNAVAILABLE, text);
		return;
	}
	fault_note(r, r->at.path, why);
	round_next(b);
}

static void document_ask(struct redfish_bmc *b)
{
	struct redfish_round *r = b->round;
	if (r->requests++ >= REDFISH_MAX_REQUESTS) {
		redfish_round_fail(b, CGN_TOO_LARGE,
			"the BMC has more documents than are read in a round (1024)");
		return;
	}
	redfish_ask(b, "GET", r->at.path, (struct cgn_str){NULL, 0}, on_document);
}

static void redirect_follow(struct redfish_bmc *b, const struct redfish_answer *a)
{
	char why[REDFISH_PATH_BYTES + 60], path[REDFISH_PATH_BYTES];
	if (!redfish_location(b, a->location, path)) {
		(void)snprintf(why, sizeof why,
			"the BMC redirects to another host, which is not followed: %.100s", a->location);
		document_fail(b, why);
	} else if (b->round->redirects++ >= REDIRECTS_MOST) {
		document_fail(b, "the BMC redirects again and again");
	} else {
		memcpy(b->round->at.path, path, sizeof path);
		document_ask(b);
	}
}

/* A session ends when it was not used for a while, or when the BMC restarts. */
static void credentials_renew(struct redfish_bmc *b, int status)
{
	char why[300];
	struct redfish_session *s = &b->session;
	if (b->user != NULL && s->auth == REDFISH_BY_SESSION && !s->was_renewed && status == 401) {
		s->was_renewed = true;
		redfish_login(b);
		return;
	}
	if (b->user != NULL && s->auth == REDFISH_NO_AUTH && status == 401) {
		s->auth =
			REDFISH_BY_BASIC; /* Even the service root, which the standard leaves open to all, wants them */
		document_ask(b);
		return;
	}
	if (b->user == NULL)
		(void)snprintf(why, sizeof why, "the BMC wants a user and a password (HTTP status %d)",
			status);
	else
		(void)snprintf(why, sizeof why,
			"the BMC does not let the user %.60s read %.120s (HTTP status %d)", b->user,
			b->round->at.path, status);
	redfish_round_fail(b, CGN_FORBIDDEN, why);
}

static void document_read(struct redfish_bmc *b, struct cgn_str body)
{
	struct redfish_round *r = b->round;
	struct cgn_err err = {0};
	r->gave_reading = false;
	if (!cgn_ok(redfish_read(&r->at, body, &walk_ops, b, &err))) {
		document_fail(b, "the answer is not a JSON document");
		return;
	}
	sensor_note(b);
	if (r->at.role == REDFISH_SERVICE && b->user != NULL && b->session.auth != REDFISH_BY_BASIC &&
		b->session.token[0] == '\0') {
		r->at.role = REDFISH_ROLES; /* The root was read */
		redfish_login(b);
		return;
	}
	round_next(b);
}

static void on_document(struct redfish_bmc *b, const struct redfish_answer *a)
{
	char why[60];
	if (a->err->code == CGN_TOO_LARGE)
		document_fail(b, a->err->msg);
	else if (a->err->code != CGN_FINE)
		redfish_round_fail(b, a->err->code, a->err->msg);
	else if (a->status == 200)
		document_read(b, a->body);
	else if (a->status == 401 || (a->status == 403 && b->round->at.role == REDFISH_CHASSIS_LIST))
		credentials_renew(b, a->status);
	else if (a->status / 100 == 3)
		redirect_follow(b, a);
	else if (a->status == 404 && b->round->at.role != REDFISH_SERVICE)
		round_next(b); /* A link to nothing, which BMCs have */
	else {
		(void)snprintf(why, sizeof why, "HTTP status %d", a->status);
		document_fail(b, why);
	}
}

static void round_next(struct redfish_bmc *b)
{
	struct redfish_round *r = b->round;
	if (r->n == 0) {
		if (r->lost > 0)
			fault_note(r, "",
				"the BMC lists more than is read: 256 documents waiting, 256 readings");
		redfish_round_end(b, CGN_FINE, r->fault);
		return;
	}
	r->at = r->waiting[r->first];
	r->first = (r->first + 1) % REDFISH_MAX_WAITING;
	r->n--;
	r->redirects = 0;
	document_ask(b);
}

void redfish_round_go(struct redfish_bmc *b)
{
	if (b->round->at.role == REDFISH_ROLES)
		round_next(b);
	else
		document_ask(b);
}

void redfish_round_fail(struct redfish_bmc *b, enum cgn_code code, const char *why)
{
	redfish_round_end(b, code, why);
}

static void on_round_limit(struct cgn_timer *t)
{
	struct redfish_bmc *b = CGN_CONTAINER(t, struct redfish_bmc, round_limit);
	CGN_LIVE(b, REDFISH_BMC_TAG);
	redfish_ask_cancel(b);
	char why[100];
	(void)snprintf(why, sizeof why, "the BMC's documents were not all read within %g s",
		(double)b->timeout * 6 / (double)CGN_SEC);
	redfish_round_end(b, CGN_DEADLINE, why);
}

void redfish_round_init(struct redfish_bmc *b)
{
	cgn_timer_init(&b->round_limit, b->loop, on_round_limit);
}

void redfish_round_begin(struct redfish_bmc *b)
{
	struct redfish_round *r = b->round = CGN_NEW(struct redfish_round);
	b->session.was_renewed = false;
	if (b->seen.rounds++ % LOOK_AGAIN == 0)
		b->n_skip = 0;
	b->round_since = cgn_loop_now(b->loop);
	cgn_timer_set(&b->round_limit, 6 * b->timeout);
	r->at = (struct redfish_link){.role = REDFISH_SERVICE,
		.component = POWER_CHASSIS,
		.path = REDFISH_ROOT};
	document_ask(b);
}
