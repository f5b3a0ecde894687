/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/cluster/scalecall/scalecall.h"

#include <stdlib.h>

#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "base/weburl/weburl.h"
#include "io/os/disk/disk.h"
#include "io/os/proc/proc.h"
#include "io/wire/webask/webask.h"
#include "joint/web/webclient/webclient.h"

#define SCALECALL_TAG   0x5ca1eca1U
#define GRACE           (2 * CGN_SEC) /* From SIGTERM to SIGKILL of a program that takes too long. */
#define ANSWER_MOST     ((size_t)64 * 1024)
#define SECRET_MOST     ((size_t)4096)
#define SAID_MOST       200
#define SIGNATURE       "sha256="
#define CONNECT_LONGEST (5 * CGN_SEC)

struct scalecall {
	uint32_t tag;
	struct cgn_loop *loop;
	scalecall_done *done;
	void *user;
	/* A program. */
	struct proc *proc;
	struct cgn_timer limit;
	bool late;
	char said[SAID_MOST];
	/* A webhook. */
	struct http_client *http;
	struct weburl url; /* Without its path. */
	struct webask *fetch;
	struct cgn_grave grave;
};

static void call_release(struct cgn_grave *g)
{
	struct scalecall *c = CGN_CONTAINER(g, struct scalecall, grave);
	http_client_free(&c->http);
	c->tag = 0;
	free(c);
}

/* Buried: an HTTP client cannot be freed in the callback of its call. */
static void call_retire(struct scalecall *c)
{
	cgn_timer_cancel(&c->limit);
	cgn_loop_bury(c->loop, &c->grave, call_release);
}

static void call_finish(struct scalecall *c, enum autoscale_outcome outcome, const char *why)
{
	c->done(c->user, outcome, why);
	call_retire(c);
}

/* ---- a program ---- */

static void on_program_line(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	struct scalecall *c = user;
	(void)is_stderr;
	(void)dropped;
	CGN_LIVE(c, SCALECALL_TAG);
	if (line.n > 0)
		(void)cgn_str_copyz(c->said, sizeof c->said,
			(struct cgn_str){line.p, line.n < SAID_MOST ? line.n : SAID_MOST - 1});
}

static void on_program_exit(void *user, const struct proc_exit *end)
{
	struct scalecall *c = user;
	char why[SCALECALL_WHY];
	CGN_LIVE(c, SCALECALL_TAG);
	c->proc = NULL;
	const struct autoscale_exit e = {.exec_errno = end->exec_errno,
		.code = end->code,
		.signal = end->signal,
		.late = c->late,
		.said = cgn_str_of(c->said)};
	enum autoscale_outcome outcome = autoscale_exit_read(&e, why, sizeof why);
	call_finish(c, outcome, why);
}

static void on_program_limit(struct cgn_timer *t)
{
	struct scalecall *c = CGN_CONTAINER(t, struct scalecall, limit);
	CGN_LIVE(c, SCALECALL_TAG);
	c->late = true;
	proc_stop(c->proc);
}

static CGN_RC program_start(struct scalecall *c, const struct config_list *words, cgn_nsec timeout,
	const struct autoscale_order *o, struct cgn_err *err)
{
	static const struct proc_ops ops = {.on_line = on_program_line, .on_exit = on_program_exit};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const char *env[AUTOSCALE_ORDER_VAR + 1];
	if (!autoscale_order_env(o, &text, env))
		return CGN_FAIL(err, NO_MEMORY, "no memory for the command");
	const char **argv = CGN_NEW_ARRAY(const char *, words->n + 1);
	for (size_t i = 0; i < words->n; i++)
		argv[i] = words->v[i];
	const struct proc_cfg cfg = {.argv = argv, .env = env, .grace = GRACE};
	cgn_rc rc = proc_spawn(c->loop, &cfg, &ops, c, &c->proc, err);
	free(argv);
	if (cgn_ok(rc))
		cgn_timer_set(&c->limit, timeout);
	return rc;
}

/* ---- a webhook ---- */

static void on_webhook_answer(void *user, const struct webask_answer *a)
{
	struct scalecall *c = user;
	char why[SCALECALL_WHY];
	enum autoscale_outcome outcome = AUTOSCALE_AGAIN;
	CGN_LIVE(c, SCALECALL_TAG);
	c->fetch = NULL;
	if (a->err->code == CGN_FINE)
		outcome = autoscale_status_read(a->status, a->body, why, sizeof why);
	else if (a->err->code == CGN_DEADLINE)
		(void)snprintf(why, sizeof why,
			"the webhook did not answer within router.autoscaler.target_timeout");
	else if (a->err->code == CGN_TOO_LARGE)
		(void)snprintf(why, sizeof why, "the webhook's answer has more than 64 KiB");
	else
		(void)snprintf(why, sizeof why, "the webhook cannot be asked: %.300s", a->err->msg);
	call_finish(c, outcome, why);
}

static struct cgn_str secret_of(struct cgn_str text)
{
	while (text.n > 0 && strchr(" \t\r\n", text.p[text.n - 1]) != NULL)
		text.n--;
	return text;
}

static void secret_fini(struct cgn_buf *secret)
{
	if (secret->p != NULL)
		crypto_wipe(secret->p, secret->n);
	cgn_buf_fini(secret);
}

/* Append "sha256=" and the HMAC of |body| with the secret of the file, without the blanks at the file's end. */
static CGN_RC signature_put(const char *path, struct cgn_str body, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(secret_fini) struct cgn_buf secret = {0};
	CGN_TRY(disk_read_file(path, SECRET_MOST, &secret, err));
	struct cgn_str key = secret_of(cgn_buf_view(&secret));
	if (key.n == 0)
		return CGN_FAIL(err, INVALID, "%s has no secret in it", path);
	const struct sha256 mac = crypto_hmac_sha256(key, body);
	cgn_buf_putz(out, SIGNATURE);
	hex_put(out, (struct cgn_str){(const char *)mac.b, sizeof mac.b});
	return CGN_OK;
}

static CGN_RC webhook_open(struct scalecall *c, const struct config *cfg, char *path, size_t cap,
	struct cgn_err *err)
{
	const struct webclient_cfg web = {.url = cfg->router.autoscaler.webhook_url,
		.ca_file = cfg->router.autoscaler.webhook_ca_file,
		.max_conns = 1,
		.connect_timeout = CONNECT_LONGEST};
	CGN_TRY(webclient_open(c->loop, &web, &c->url, &c->http, err));
	/* The path is asked for as it is: nothing is put before it. */
	(void)snprintf(path, cap, "%s", c->url.base[0] != '\0' ? c->url.base : "/");
	c->url.base[0] = '\0';
	c->url.base_is_version = false;
	return CGN_OK;
}

static CGN_RC webhook_start(struct scalecall *c, const struct config *cfg, const struct autoscale_order *o,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {0}, mac = {0};
	char path[sizeof c->url.base + 1];
	const char *secret = cfg->router.autoscaler.webhook_secret_file;
	autoscale_order_json(o, &json);
	if (secret != NULL)
		CGN_TRY(signature_put(secret, cgn_buf_view(&json), &mac, err));
	CGN_TRY(webhook_open(c, cfg, path, sizeof path, err));
	const struct http_field fields[] = {{CGN_STR("idempotency-key"), cgn_str_of(o->id)},
		{CGN_STR("x-cgn-signature"), cgn_buf_view(&mac)}};
	const struct webask_endpoint to = {.client = c->http, .url = &c->url};
	const struct webask_question ask = {.path = path,
		.json = cgn_buf_view(&json),
		.max_bytes = ANSWER_MOST,
		.timeout = cfg->router.autoscaler.target_timeout,
		.fields = fields,
		.n_fields = secret != NULL ? 2 : 1};
	return webask_start(c->loop, &to, &ask, on_webhook_answer, c, &c->fetch, err);
}

/* ---- start and cancel ---- */

CGN_RC scalecall_start(struct cgn_loop *l, const struct config *cfg, const struct autoscale_order *o,
	scalecall_done *done, void *user, struct scalecall **out, enum autoscale_outcome *outcome,
	struct cgn_err *err)
{
	struct scalecall *c = CGN_NEW(struct scalecall);
	*outcome = AUTOSCALE_AGAIN;
	*c = (struct scalecall){.tag = SCALECALL_TAG, .loop = l, .done = done, .user = user};
	cgn_timer_init(&c->limit, l, on_program_limit);
	cgn_rc rc = cfg->router.autoscaler.target == CONFIG_SCALE_EXEC
		? program_start(c, &cfg->router.autoscaler.exec, cfg->router.autoscaler.target_timeout, o,
			  err)
		: webhook_start(c, cfg, o, err);
	if (cgn_ok(rc)) {
		*out = c;
		return CGN_OK;
	}
	if (rc.code == CGN_NOT_FOUND || rc.code == CGN_FORBIDDEN || rc.code == CGN_INVALID)
		*outcome = AUTOSCALE_REFUSED;
	call_retire(c);
	return rc;
}

void scalecall_cancel(struct scalecall **take)
{
	struct scalecall *c = CGN_TAKE_LIVE(take, SCALECALL_TAG);
	if (c == NULL)
		return;
	proc_free(&c->proc);
	webask_cancel(&c->fetch);
	call_retire(c);
}
