/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/batch/gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/os/loop/loop.h"
#include "joint/ctl/client/client.h"
#include "joint/ctl/client/origin.h"

#define ANSWER_MAX   ((size_t)4 << 20)
#define PIECE        ((size_t)256 * 1024)
#define REFUSAL_WAIT (5 * CGN_SEC)
#define BOUNDARY     "cgn-ctl-9f3b1c7d5e2a4680"

static const char form_tail[] = "\r\n--" BOUNDARY "--\r\n";

struct ctl_gateway {
	struct cgn_loop *loop;
	struct ctl_origin origin;
	struct cgn_buf key; /* API key with its NUL; empty: none. */
	cgn_nsec timeout;
};

/* A request and its answer. */
struct talk {
	struct ctl_gateway *g;
	struct http_call *call; /* NULL: it has ended. */
	int status;
	struct cgn_buf *answer; /* The body, unless it goes to |to|. */
	int to, from;           /* Descriptors of the content of an answer, and of an upload; -1: none. */
	struct cgn_str head;    /* Beginning of an upload's body. */
	uint64_t left;          /* Bytes of the file that are still to be sent. */
	uint64_t most;          /* Bytes of the file to send at most now. */
	char *piece;            /* PIECE bytes, for |from|. */
	struct cgn_err end;     /* CGN_FINE: the answer is complete. */
};

CGN_RC ctl_gateway_open(const struct ctl_args *a, struct ctl_gateway **out, struct cgn_err *err)
{
	const struct tls_cfg tls = {.ca_file = ctl_flag(a, "--ca"), .crl_file = ctl_flag(a, "--crl")};
	const char *key = getenv("CGN_API_KEY");
	CGN_ON_EXIT(ctl_gateway_close) struct ctl_gateway *g = CGN_NEW(struct ctl_gateway);
	CGN_TRY(ctl_crl_check(&tls, err));
	CGN_TRY(ctl_flag_duration(a, "--timeout", &g->timeout, err));
	if (ctl_flag(a, "--key-file") != NULL)
		CGN_TRY(ctl_origin_key(ctl_flag(a, "--key-file"), &g->key, err));
	else if (key != NULL && key[0] != '\0')
		cgn_buf_add(&g->key, key, strlen(key) + 1);
	CGN_TRY(cgn_loop_new(&g->loop, err));
	CGN_TRY(ctl_origin_open(g->loop, ctl_flag(a, "--url"), &tls, 1, &g->origin, err));
	*out = CGN_TAKE(&g);
	return CGN_OK;
}

void ctl_gateway_close(struct ctl_gateway **take)
{
	struct ctl_gateway *g = CGN_TAKE(take);
	if (g == NULL)
		return;
	ctl_origin_close(&g->origin);
	cgn_loop_close(&g->loop);
	cgn_buf_fini(&g->key);
	free(g);
}

/* ---- the answer ---- */

static void talk_stop(struct talk *t)
{
	if (t->call != NULL)
		http_call_cancel(&t->call);
	cgn_loop_stop(t->g->loop);
}

static void talk_head(struct http_call *c, void *user, const struct http_head *h)
{
	(void)c;
	((struct talk *)user)->status = h->status;
}

static void talk_write(struct talk *t, struct cgn_str s)
{
	while (s.n > 0) {
		ssize_t n = write(t->to, s.p, s.n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			(void)!cgn_ok(
				CGN_FAIL(&t->end, STORAGE, "cannot write the content: %s", strerror(errno)));
			talk_stop(t);
			return;
		}
		s = (struct cgn_str){s.p + n, s.n - (size_t)n};
	}
}

static void talk_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	struct talk *t = user;
	(void)c;
	if (t->to >= 0 && t->status == 200)
		talk_write(t, (struct cgn_str){(const char *)p, n});
	else
		cgn_buf_add(t->answer, p, n);
}

static void talk_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	struct talk *t = user;
	(void)c;
	(void)trailers;
	(void)n;
	t->call = NULL;
	cgn_loop_stop(t->g->loop);
}

static void talk_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct talk *t = user;
	(void)c;
	(void)stage;
	t->end = *why;
	t->call = NULL;
	cgn_loop_stop(t->g->loop);
}

/* ---- the upload ---- */

static void upload_more(struct talk *t)
{
	while (t->call != NULL && t->from >= 0 && t->most > 0 && !http_call_over_mark(t->call)) {
		ssize_t n =
			t->left > 0 ? read(t->from, t->piece, t->left < PIECE ? (size_t)t->left : PIECE) : 0;
		if (n < 0 || (n == 0 && t->left > 0)) {
			(void)!cgn_ok(CGN_FAIL(&t->end, STORAGE, "cannot read the file: %s",
				n < 0 ? strerror(errno) : "it became shorter"));
			talk_stop(t);
			return;
		}
		bool last = t->left == (uint64_t)n;
		const struct iovec iov[] = {{t->piece, (size_t)n},
			{(void *)(uintptr_t)form_tail, sizeof form_tail - 1}};
		t->left -= (uint64_t)n;
		t->most -= (uint64_t)n < t->most ? (uint64_t)n : t->most;
		if (last)
			t->from = -1;
		http_call_body(t->call, n > 0 ? iov : iov + 1, (n > 0) + (size_t)last);
		if (last && t->call != NULL)
			http_call_end(t->call);
	}
}

static void talk_drain(struct http_call *c, void *user)
{
	(void)c;
	upload_more(user);
}

/* ---- the request ---- */

/* The code whose HTTP status is |status|; other refusals are INVALID, other failures BAD_GATEWAY. */
static enum cgn_code code_of(int status)
{
	static const enum cgn_code codes[] = {CGN_INVALID, CGN_UNAUTHENTICATED, CGN_FORBIDDEN, CGN_NOT_FOUND,
		CGN_CONFLICT, CGN_TOO_LARGE, CGN_OVERLOADED, CGN_INTERNAL, CGN_UNAVAILABLE, CGN_DEADLINE};
	if (status == 507)
		return CGN_STORAGE;
	for (size_t i = 0; i < CGN_COUNT(codes); i++)
		if (cgn_code_http(codes[i]) == status)
			return codes[i];
	return status >= 400 && status < 500 ? CGN_INVALID : CGN_BAD_GATEWAY;
}

/* Name a status other than 200 by the gateway's own message. */
static CGN_RC talk_refusal(const struct talk *t, const char *method, const char *path, struct cgn_err *err)
{
	struct json_val v, error;
	struct cgn_arena arena;
	struct cgn_str body = cgn_buf_view(t->answer), why = {NULL, 0};
	cgn_arena_init(&arena, 8192);
	if (cgn_ok(json_parse(body, &v, NULL, NULL)) && json_get(v, "error", &error))
		why = json_get_str(error, "message", &arena);
	if (why.p == NULL)
		why = (struct cgn_str){body.n > 0 ? body.p : "", body.n};
	const char *then = t->status == 401 ? "; name an API key with --key-file or $CGN_API_KEY"
		: t->status == 404 && cgn_str_starts(why, "there is no route")
		? "; are batches on there (batch.enabled)?"
		: "";
	cgn_rc rc = CGN_FAIL_AS(err, code_of(t->status), "%s answered %s %.60s with %d: %.*s%s",
		t->g->origin.addr, method, path, t->status, (int)(why.n < 300 ? why.n : 300), why.p, then);
	cgn_arena_fini(&arena);
	return rc;
}

static CGN_RC talk_run(struct talk *t, struct http_request *rq, const char *type, struct cgn_err *err)
{
	static const struct http_call_ops ops = {.on_head = talk_head,
		.on_body = talk_body,
		.on_end = talk_end,
		.on_drain = talk_drain,
		.on_fail = talk_fail};
	struct ctl_gateway *g = t->g;
	const char *path = rq->path;
	char full[700], authorization[600];
	struct http_field fields[2];
	(void)snprintf(full, sizeof full, "%s%s", g->origin.base, path);
	rq->path = full;
	rq->fields = fields;
	rq->n_fields = ctl_origin_fields(g->key.n > 0 ? g->key.p : NULL, authorization, sizeof authorization,
		fields);
	fields[0].value = cgn_str_of(type);
	rq->idle_timeout = g->timeout;
	t->answer->limit = ANSWER_MAX;
	CGN_TRY(http_call_start(g->origin.client, rq, &ops, t, &t->call, err));
	const struct iovec first = {(void *)(uintptr_t)t->head.p, t->head.n};
	if (t->from >= 0)
		http_call_body(t->call, &first, 1);
	upload_more(t);
	cgn_loop_run(g->loop);
	if (t->end.code != CGN_FINE && t->status == 0)
		return CGN_FAIL_AS(err, t->end.code == CGN_BAD_GATEWAY ? CGN_UNAVAILABLE : t->end.code,
			"the gateway at %s does not answer: %.250s; name another with --url", g->origin.addr,
			t->end.msg);
	if (t->end.code != CGN_FINE)
		return CGN_FAIL_AS(err, t->end.code, "%s %s at %s: %.250s", rq->method, path, g->origin.addr,
			t->end.msg);
	if (t->status != 200)
		return talk_refusal(t, rq->method, path, err);
	return t->answer->bad
		? CGN_FAIL(err, TOO_LARGE, "%s %s: the answer has more than 4 MiB", rq->method, path)
		: CGN_OK;
}

CGN_RC ctl_gateway_ask(struct ctl_gateway *g, const char *method, const char *path, struct cgn_str payload,
	struct cgn_buf *out, struct cgn_err *err)
{
	const struct iovec piece = {(void *)(uintptr_t)payload.p, payload.n};
	struct talk t = {.g = g, .answer = out, .to = -1, .from = -1};
	struct http_request rq = {.method = method,
		.path = path,
		.body_len = (int64_t)payload.n,
		.body = payload.n > 0 ? &piece : NULL,
		.n_body = payload.n > 0,
		.head_timeout = g->timeout};
	return talk_run(&t, &rq, "application/json", err);
}

CGN_RC ctl_gateway_save(struct ctl_gateway *g, const char *path, int fd, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf refusal = {0};
	struct talk t = {.g = g, .answer = &refusal, .to = fd, .from = -1};
	struct http_request rq = {.method = "GET", .path = path, .head_timeout = g->timeout};
	return talk_run(&t, &rq, "application/json", err);
}

/* Append the part of the form before the file. Characters that end a quoted text become '_'. */
static void form_head_put(const char *file, struct cgn_buf *out)
{
	const char *slash = strrchr(file, '/');
	cgn_buf_putz(out,
		"--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
		"--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"");
	for (const char *p = slash != NULL ? slash + 1 : file; *p != '\0'; p++)
		cgn_buf_char(out, *p == '"' || *p == '\\' || (unsigned char)*p < ' ' ? '_' : *p);
	cgn_buf_putz(out, "\"\r\nContent-Type: application/jsonl\r\n\r\n");
}

/* Send the file, or its first |most| bytes only, whose answer must come soon. */
static CGN_RC upload_run(struct ctl_gateway *g, int fd, uint64_t bytes, uint64_t most, const char *file,
	struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf head = {0};
	struct talk t = {.g = g,
		.answer = out,
		.to = -1,
		.from = fd,
		.left = bytes,
		.most = most,
		.piece = CGN_NEW_ARRAY(char, PIECE)};
	form_head_put(file, &head);
	t.head = cgn_buf_view(&head);
	struct http_request rq = {.method = "POST",
		.path = "/v1/files",
		.body_len = (int64_t)(head.n + bytes + sizeof form_tail - 1),
		.head_timeout = most < bytes ? REFUSAL_WAIT : 0};
	cgn_rc rc = talk_run(&t, &rq, "multipart/form-data; boundary=" BOUNDARY, err);
	free(t.piece);
	return rc;
}

/* A gateway that refuses an upload answers and closes, which can break off the sending before the answer is read. Ask for
 * the refusal with the beginning of the file. */
static CGN_RC upload_broken(struct ctl_gateway *g, int fd, uint64_t bytes, const char *file, cgn_rc rc,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf answer = {0};
	struct cgn_err why;
	if (bytes <= PIECE || lseek(fd, 0, SEEK_SET) != 0)
		return rc;
	cgn_rc again = upload_run(g, fd, bytes, PIECE, file, &answer, &why);
	if (cgn_ok(again) || again.code == CGN_UNAVAILABLE || again.code == CGN_DEADLINE)
		return rc;
	*err = why;
	return again;
}

CGN_RC ctl_gateway_upload(struct ctl_gateway *g, const char *file, struct cgn_buf *out, struct cgn_err *err)
{
	struct stat st;
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return CGN_FAIL_AS(err,
			errno == ENOENT           ? CGN_NOT_FOUND
				: errno == EACCES ? CGN_FORBIDDEN
						  : CGN_STORAGE,
			"cannot open %s: %s", file, strerror(errno));
	cgn_rc rc = fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)
		? CGN_FAIL(err, INVALID, "%s is not a regular file", file)
		: upload_run(g, fd, (uint64_t)st.st_size, UINT64_MAX, file, out, err);
	if (rc.code == CGN_UNAVAILABLE)
		rc = upload_broken(g, fd, (uint64_t)st.st_size, file, rc, err);
	(void)close(fd);
	return rc;
}
