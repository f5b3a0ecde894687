/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/fleet/autoscale/order.h"

#include <stdio.h>
#include <string.h>
#include <sysexits.h>

#include "base/json/json.h"

#define SAID_MOST 160 /* Bytes of an answer in a sentence. */

static const char *action_text(const struct autoscale_order *o)
{
	return o->up ? "up" : "down";
}

/* ---- the order ---- */

void autoscale_order_json(const struct autoscale_order *o, struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	json_key_z(&j, "id", o->id);
	json_key_z(&j, "cluster", o->cluster);
	json_key_z(&j, "model", o->model);
	json_key_z(&j, "role", o->role);
	json_key_z(&j, "action", action_text(o));
	json_key_u64(&j, "have", o->have);
	json_key_u64(&j, "replicas", o->replicas);
	json_key_open(&j, "nodes", '[');
	for (size_t i = 0; i < o->n_nodes; i++)
		json_put_str(&j, cgn_str_of(o->nodes[i]));
	json_close(&j, ']');
	json_key_z(&j, "why", o->why);
	json_key_u64(&j, "at_unix_ms", o->at_unix_ms);
	json_close(&j, '}');
}

static void variable_put(struct cgn_buf *out, const char *name, const char *value)
{
	cgn_buf_fmt(out, "CGN_SCALE_%s=%s", name, value);
	cgn_buf_char(out, '\0');
}

static void number_put(struct cgn_buf *out, const char *name, uint64_t value)
{
	cgn_buf_fmt(out, "CGN_SCALE_%s=%llu", name, (unsigned long long)value);
	cgn_buf_char(out, '\0');
}

static void nodes_put(struct cgn_buf *out, const struct autoscale_order *o)
{
	cgn_buf_putz(out, "CGN_SCALE_NODES=");
	for (size_t i = 0; i < o->n_nodes; i++)
		cgn_buf_fmt(out, i > 0 ? " %s" : "%s", o->nodes[i]);
	cgn_buf_char(out, '\0');
}

bool autoscale_order_env(const struct autoscale_order *o, struct cgn_buf *out,
	const char *env[AUTOSCALE_ORDER_VAR + 1])
{
	variable_put(out, "ID", o->id);
	variable_put(out, "CLUSTER", o->cluster);
	variable_put(out, "MODEL", o->model);
	variable_put(out, "ROLE", o->role);
	variable_put(out, "ACTION", action_text(o));
	number_put(out, "HAVE", o->have);
	number_put(out, "REPLICAS", o->replicas);
	nodes_put(out, o);
	variable_put(out, "WHY", o->why);
	number_put(out, "AT_UNIX_MS", o->at_unix_ms);
	if (out->bad)
		return false;
	size_t n = 0;
	for (const char *at = out->p; at < out->p + out->n && n < AUTOSCALE_ORDER_VAR; at += strlen(at) + 1)
		env[n++] = at;
	env[n] = NULL;
	return true;
}

/* ---- the answer ---- */

/* Return the meaning of an exit status by the conventions of shells and sysexits.h; NULL: nothing in
 * particular. */
static const char *exit_meaning(int code)
{
	switch (code) {
	case 126:
		return "it cannot be executed";
	case 127:
		return "a command was not found";
	case EX_USAGE:
		return "EX_USAGE: wrong arguments";
	case EX_UNAVAILABLE:
		return "EX_UNAVAILABLE: a service is not there";
	case EX_TEMPFAIL:
		return "EX_TEMPFAIL: try again";
	case EX_NOPERM:
		return "EX_NOPERM: not allowed";
	case EX_CONFIG:
		return "EX_CONFIG: its configuration is wrong";
	default:
		return NULL;
	}
}

static void said_add(struct cgn_buf *b, struct cgn_str said)
{
	said.n = said.n < SAID_MOST ? said.n : SAID_MOST;
	if (said.n == 0)
		return;
	cgn_buf_putz(b, ": ");
	cgn_buf_shown(b, said);
}

enum autoscale_outcome autoscale_exit_read(const struct autoscale_exit *e, char *why, size_t cap)
{
	struct cgn_buf b = cgn_buf_over(why, cap - 1);
	const char *meaning = exit_meaning(e->code);
	enum autoscale_outcome out = AUTOSCALE_AGAIN;
	if (e->exec_errno != 0)
		cgn_buf_fmt(&b, "the command cannot be executed: %s", strerror(e->exec_errno));
	else if (e->late)
		cgn_buf_putz(&b,
			"the command took longer than router.autoscaler.target_timeout and was ended");
	else if (e->code < 0)
		cgn_buf_fmt(&b, "signal %d ended the command", e->signal);
	else if (e->code > 0 && meaning != NULL)
		cgn_buf_fmt(&b, "the command ended with status %d (%s)", e->code, meaning);
	else if (e->code > 0)
		cgn_buf_fmt(&b, "the command ended with status %d", e->code);
	else {
		out = AUTOSCALE_DONE;
		cgn_buf_putz(&b, "the command has ended well");
	}
	if (e->exec_errno != 0 ||
		(!e->late && (e->code == EX_USAGE || e->code == EX_NOPERM || e->code == EX_CONFIG)))
		out = AUTOSCALE_REFUSED;
	said_add(&b, e->said);
	why[b.n] = '\0';
	return out;
}

enum autoscale_outcome autoscale_status_read(int status, struct cgn_str body, char *why, size_t cap)
{
	struct cgn_buf b = cgn_buf_over(why, cap - 1);
	bool done = status >= 200 && status < 300;
	bool again = status == 408 || status == 425 || status == 429 || status >= 500;
	cgn_buf_fmt(&b, "the webhook answered %d", status);
	said_add(&b, body);
	why[b.n] = '\0';
	return done ? AUTOSCALE_DONE : again ? AUTOSCALE_AGAIN : AUTOSCALE_REFUSED;
}
