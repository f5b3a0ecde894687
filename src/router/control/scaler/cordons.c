/* SPDX-License-Identifier: Apache-2.0 */
/* cordons: the cordons that the autoscaler sets, and their file in cluster.state_dir. A cordon outlives the router in the
 * state backend, so the file names it before it is set, and the next start lifts it: the state backend does not say whose a cordon is. */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/seal/seal.h"
#include "router/control/scaler/scaler_priv.h"

#define CORDONS_KIND   "cognitora-scaler-cordons"
#define CORDONS_FORMAT 1
#define FILE_MAX       ((size_t)1 << 20)

/* An uncordon that the state backend works on. */
struct cordon_lift {
	struct scaler *s;
	char node[PROTO_MAX_ID + 1];
};

static struct scaler_cordon *cordon_find(struct scaler *s, const char *node)
{
	for (size_t i = 0; i < SCALER_CORDONS; i++)
		if (strcmp(s->cordons[i].node, node) == 0)
			return &s->cordons[i];
	return NULL;
}

/* Return the cordon of the node, made if there is none; NULL: there is no room. */
static struct scaler_cordon *cordon_make(struct scaler *s, const char *node)
{
	struct scaler_cordon *c = cordon_find(s, node);
	if (c == NULL && (c = cordon_find(s, "")) != NULL) {
		(void)cgn_str_copyz(c->node, sizeof c->node, cgn_str_of(node));
		c->state = SCALER_CORDON_NOTED;
		s->cordons_changed = true;
	}
	return c;
}

static void cordon_drop(struct scaler *s, struct scaler_cordon *c)
{
	*c = (struct scaler_cordon){.node = ""};
	s->cordons_changed = true;
}

/* ---- the file ---- */

static void cordons_text(const struct scaler *s, struct cgn_buf *out)
{
	seal_begin(out, CORDONS_KIND, CORDONS_FORMAT);
	for (size_t i = 0; i < SCALER_CORDONS; i++)
		if (s->cordons[i].node[0] != '\0')
			cgn_buf_fmt(out, "%s\n", s->cordons[i].node);
	seal_end(out);
}

void router_scaler_cordons(struct scaler *s, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_str lines;
	struct cgn_err why;
	char node[PROTO_MAX_ID + 1];
	s->cordons_file = statefile_open(s->r->loop, path, "cordons of the autoscaler");
	if (!statefile_read(s->cordons_file, FILE_MAX, &text))
		return;
	if (!cgn_ok(seal_open(cgn_buf_view(&text), CORDONS_KIND, CORDONS_FORMAT, &lines, &why))) {
		statefile_set_aside(s->cordons_file, why.msg);
		return;
	}
	while (lines.n > 0) {
		struct cgn_str line = cgn_str_split(&lines, '\n');
		struct scaler_cordon *c =
			line.n > 0 && cgn_str_copyz(node, sizeof node, line) ? cordon_make(s, node) : NULL;
		if (c != NULL)
			c->state = SCALER_CORDON_LIFT;
	}
	s->cordons_changed = false;
}

/* ---- the state backend ---- */

static void cordon_failed(const struct cgn_err *err)
{
	cgn_log_limited(WARN, "router.scale_cordon_failed", F_STR("why", err->msg),
		F_STR("then", "it is tried again; cgn-ctl cluster nodes shows what is cordoned"));
}

static void lift_done(void *user, const struct cgn_err *err)
{
	struct cordon_lift *l = user;
	struct scaler_cordon *c = cordon_find(l->s, l->node);
	if (c != NULL && c->state == SCALER_CORDON_LIFTS) {
		c->state = SCALER_CORDON_LIFT;
		if (err->code == CGN_FINE)
			cordon_drop(l->s, c);
	}
	if (err->code != CGN_FINE && err->code != CGN_CANCELLED)
		cordon_failed(err);
	free(l);
}

static void cordon_lift(struct scaler *s, struct scaler_cordon *c)
{
	struct cgn_err err;
	struct cordon_lift *l = CGN_NEW(struct cordon_lift);
	l->s = s;
	(void)cgn_str_copyz(l->node, sizeof l->node, cgn_str_of(c->node));
	c->state = SCALER_CORDON_LIFTS;
	if (cgn_ok(state_cordon(s->r->members.state, c->node, false, lift_done, l, &err)))
		return;
	c->state = SCALER_CORDON_LIFT;
	free(l);
	cordon_failed(&err);
}

static void set_done(void *user, const struct cgn_err *err)
{
	(void)user;
	if (err->code != CGN_FINE && err->code != CGN_CANCELLED)
		cordon_failed(err);
}

static void cordon_set(struct scaler *s, struct scaler_cordon *c)
{
	struct cgn_err err;
	c->state = SCALER_CORDON_SET;
	if (!cgn_ok(state_cordon(s->r->members.state, c->node, true, set_done, NULL, &err)))
		cordon_failed(&err);
}

void scaler_cordon(struct scaler *s, const char *node, bool on)
{
	struct scaler_cordon *c = on ? cordon_make(s, node) : cordon_find(s, node);
	if (c == NULL)
		return; /* Not cordoned: the order waits until its group is decided again. */
	if (on)
		c->state = SCALER_CORDON_NOTED;
	else if (c->state == SCALER_CORDON_NOTED)
		cordon_drop(s, c);
	else
		cordon_lift(s, c);
}

void scaler_cordons_step(struct scaler *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	bool is_kept = s->cordons_file == NULL || !statefile_is_busy(s->cordons_file);
	if (is_kept && s->cordons_changed && s->cordons_file != NULL) {
		cordons_text(s, &text);
		s->cordons_changed = false;
		statefile_write(s->cordons_file, &text);
		is_kept = false;
	}
	if (s->r->members.knowledge != STATE_HEARD)
		return;
	for (size_t i = 0; i < SCALER_CORDONS; i++) {
		struct scaler_cordon *c = &s->cordons[i];
		if (c->state == SCALER_CORDON_LIFT)
			cordon_lift(s, c);
		else if (c->state == SCALER_CORDON_NOTED && is_kept)
			cordon_set(s, c);
	}
}

void scaler_cordons_close(struct scaler *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	if (s->cordons_file == NULL)
		return;
	cordons_text(s, &text);
	statefile_close(&s->cordons_file, text.bad ? NULL : &text);
}
