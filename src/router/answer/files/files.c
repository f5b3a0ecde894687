/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "base/form/form.h"
#include "joint/who/oidc/oidc.h"
#include "policy/who/claims/kept.h"
#include "router/answer/answer/reply.h"
#include "router/answer/files/files_priv.h"
#include "router/request/limit/shares.h"

#define BAD_REQUEST  "invalid_request_error"
#define STORED_RETRY 60 /* Seconds until a file or a batch may be gone. */

/* ---- the request's head ---- */

/* Find the operation that |r| asks for. False: there is no such route. */
static bool op_find(const struct gw_req *r, struct gw_filing *f)
{
	static const struct {
		const char *method, *path, *behind; /* "PATH", or "PATH/ID" and the text behind the id. */
		enum filing_op op;
	} rows[] = {
		{"POST", "/v1/files", NULL, FILING_UPLOAD},
		{"GET", "/v1/files", NULL, FILING_FILES},
		{"GET", "/v1/files/", "", FILING_FILE},
		{"GET", "/v1/files/", "content", FILING_CONTENT},
		{"DELETE", "/v1/files/", "", FILING_DELETE},
		{"POST", "/v1/batches", NULL, FILING_CREATE},
		{"GET", "/v1/batches", NULL, FILING_BATCHES},
		{"GET", "/v1/batches/", "", FILING_BATCH},
		{"POST", "/v1/batches/", "cancel", FILING_CANCEL},
	};
	struct cgn_str rest = r->client.path, path = cgn_str_split(&rest, '?');
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		size_t n = strlen(rows[i].path);
		if (!cgn_str_is(r->client.method, rows[i].method) || !cgn_str_starts(path, rows[i].path))
			continue;
		struct cgn_str behind = {path.p + n, path.n - n}, id = cgn_str_split(&behind, '/');
		f->op = rows[i].op;
		if (rows[i].behind == NULL ? path.n == n
					   : id.n > 0 && cgn_str_is(behind, rows[i].behind) &&
					cgn_str_copyz(f->id, sizeof f->id, id))
			return true;
	}
	return false;
}

static struct cgn_str content_type(const struct gw_req *r)
{
	for (size_t i = 0; i < r->client.n_headers; i++)
		if (cgn_str_is(r->client.headers[i].name, "content-type"))
			return r->client.headers[i].value;
	return (struct cgn_str){NULL, 0};
}

static void query_read(const struct gw_req *r, struct gw_filing *f)
{
	struct cgn_str path = r->client.path;
	uint64_t limit = f->op == FILING_FILES ? 1000 : 20, most = f->op == FILING_FILES ? 10000 : 100;
	(void)cgn_str_u64(http_query_get(path, "limit"), &limit);
	f->limit = (size_t)(limit < 1 ? 1 : limit > most ? most : limit);
	f->oldest_first = cgn_str_is(http_query_get(path, "order"), "asc");
	(void)cgn_str_copyz(f->after, sizeof f->after, http_query_get(path, "after"));
	(void)cgn_str_copyz(f->purpose, sizeof f->purpose, http_query_get(path, "purpose"));
}

static enum gw_step file_too_large(struct gw_req *r)
{
	return gw_refuse(r, &(struct gw_refusal){413, BAD_REQUEST, "file_too_large", .reason = "body"},
		"the file is larger than %llu bytes (batch.max_file)",
		(unsigned long long)r->w->shared->batch_max_file);
}

/* The batch runs for longer than the token lives: note what the token says now. */
static void holder_note(const struct gw_req *r, struct gw_filing *f)
{
	struct claims_kept h = {.who = *r->identity.holder};
	oidc_issuer(r->w->rules->auth.oidc, h.issuer);
	claims_kept_put(&h, &f->holder);
}

/* Refuse a request whose head shows an error; STEP_PARK: it shows none. */
static enum gw_step head_check(struct gw_req *r, struct gw_filing *f)
{
	struct cgn_str boundary = form_boundary(content_type(r));
	if (r->identity.tenant.n > FILESTORE_TENANT_MAX)
		return gw_refuse(r, &(struct gw_refusal){400, BAD_REQUEST, "tenant_too_long"},
			"the tenant's name is too long for files");
	if (f->op == FILING_CREATE && r->identity.holder != NULL)
		holder_note(r, f);
	if (f->op != FILING_UPLOAD)
		return STEP_PARK;
	if (boundary.p == NULL || !cgn_str_copyz(f->boundary, sizeof f->boundary, boundary))
		return gw_refuse(r, &(struct gw_refusal){400, BAD_REQUEST, "invalid_form"},
			"a file is uploaded as multipart/form-data with the fields purpose and file");
	if (r->body.length > 0 && (uint64_t)r->body.length > f->shared->batch_max_file + FILESTORE_FORM_MAX)
		return file_too_large(r);
	return STEP_PARK;
}

/* NULL: |told| is what the tenant has of the requests at once. */
static struct gw_filing *filing_new(struct gw_req *r, struct quota_told *told)
{
	struct gw_shared *shared = r->w->shared;
	const struct gw_quota_taker who = gw_share_taker(r, QUOTA_CALLS, 0);
	if (!gw_quotas_take(shared->quotas, &who, 1, shared->batch_max_calls, told))
		return NULL;
	struct gw_filing *f = CGN_NEW(struct gw_filing);
	*f = (struct gw_filing){.tag = FILING_TAG, .r = r, .fd = -1};
	f->loop = r->w->loop;
	f->shared = shared;
	(void)cgn_str_copyz(f->tenant, sizeof f->tenant, r->identity.tenant);
	(void)cgn_str_copyz(f->share, sizeof f->share, who.holder.tenant);
	(void)cgn_str_copyz(f->key, sizeof f->key, cgn_str_of(r->identity.key_id));
	return f;
}

static bool op_takes_body(enum filing_op op)
{
	return op == FILING_UPLOAD || op == FILING_CREATE;
}

/* Many slow uploads may each keep a decoder for a long time. False: there is no room for this one. */
static bool decoder_book(const struct gw_req *r, struct gw_filing *f)
{
	_Atomic uint64_t *used = &f->shared->body_bytes;
	if (atomic_fetch_add(used, CODING_MEMORY) + CODING_MEMORY > r->w->rules->max_inflight_body) {
		atomic_fetch_sub(used, CODING_MEMORY);
		return false;
	}
	f->booked = CODING_MEMORY;
	return true;
}

static enum gw_step calls_refuse(struct gw_req *r, const struct quota_told *told)
{
	const struct gw_quota_taker who = gw_share_taker(r, QUOTA_CALLS, 0);
	if (told->share)
		return gw_share_refuse(r, &who.holder, told, 1);
	return gw_refuse(r,
		&(struct gw_refusal){503, "server_error", "overloaded", .reason = "memory", .retry_after = 1},
		"%u requests for files and batches are in progress", r->w->shared->batch_max_calls);
}

static enum gw_step filing_begin(struct gw_req *r)
{
	struct quota_told told;
	struct gw_filing *f = r->filing = filing_new(r, &told);
	if (f == NULL)
		return calls_refuse(r, &told);
	if (!op_find(r, f))
		return gw_refuse(r, &(struct gw_refusal){404, BAD_REQUEST, "not_found"},
			"there is no route %.*s %.*s", CGN_STR_ARG(r->client.method),
			(int)(r->client.path.n < 200 ? r->client.path.n : 200), r->client.path.p);
	query_read(r, f);
	f->coding = op_takes_body(f->op) ? r->body.coding : CODING_IDENTITY;
	if (f->coding != CODING_IDENTITY && !decoder_book(r, f))
		return gw_refuse_body(r, CGN_OVERLOADED);
	return head_check(r, f);
}

/* ---- jobs ---- */

static void filing_free(struct gw_filing *f)
{
	coding_close(&f->decoder);
	atomic_fetch_sub(&f->shared->body_bytes, f->booked);
	cgn_buf_fini(&f->holder);
	cgn_buf_fini(&f->in);
	cgn_buf_fini(&f->piece);
	cgn_buf_fini(&f->text);
	cgn_buf_fini(&f->out);
	gw_quotas_give(f->shared->quotas, &(struct quota_holder){QUOTA_CALLS, cgn_str_of(f->share), 0}, 1);
	f->tag = 0;
	free(f);
}

/* Close and remove files. Any thread, which may wait for the disk: a large file takes long to be unmapped and removed. */
static void filing_close(void *arg)
{
	struct gw_filing *f = arg;
	filestore_cancel(&f->upload);
	if (f->fd >= 0)
		(void)close(f->fd);
	f->fd = -1;
}

static void filing_closed(void *arg)
{
	filing_free(arg);
}

/* The request has ended, and no job runs. */
static void filing_end(struct gw_filing *f)
{
	if (f->upload != NULL || f->fd >= 0)
		cgn_loop_work(f->loop, filing_close, filing_closed, f);
	else
		filing_free(f);
}

static void job_done(void *arg)
{
	struct gw_filing *f = arg;
	f->busy = false;
	if (f->r == NULL)
		filing_end(f);
	else
		gw_wake(f->r);
}

/* Give the received bytes to the pool. */
static enum gw_step job_start(struct gw_req *r, bool last)
{
	struct gw_filing *f = r->filing;
	cgn_buf_fini(&f->piece);
	f->piece = f->in;
	f->in = (struct cgn_buf){0};
	f->last = last;
	f->busy = true;
	cgn_loop_work(f->loop, filing_work, job_done, f);
	return gw_park(r, WAIT_POOL, 0);
}

void gw_files_end(struct gw_req *r)
{
	struct gw_filing *f = r->filing;
	r->filing = NULL;
	if (f == NULL)
		return;
	CGN_LIVE(f, FILING_TAG);
	f->r = NULL;
	if (!f->busy)
		filing_end(f);
}

/* ---- the body ---- */

void gw_files_body(struct gw_req *r, struct cgn_str bytes)
{
	struct gw_filing *f = r->filing;
	if (f == NULL || f->answering)
		return;
	f->received += bytes.n;
	cgn_buf_str(&f->in, bytes);
	if (f->in.n >= FILES_PIECE && !f->paused && r->client.x != NULL) {
		f->paused = true;
		http_exchange_pause(r->client.x);
	}
	gw_wake(r);
}

static enum gw_step body_take(struct gw_req *r, struct gw_filing *f)
{
	bool upload = f->op == FILING_UPLOAD;
	uint64_t most = upload ? f->shared->batch_max_file + FILESTORE_FORM_MAX : FILING_JSON_MAX;
	if (f->in.bad)
		return gw_refuse_no_memory(r, "memory");
	if (f->received > most && upload)
		return file_too_large(r);
	if (f->received > most)
		return gw_refuse(r,
			&(struct gw_refusal){413, BAD_REQUEST, "request_too_large", .reason = "body"},
			"the body is larger than %zu bytes", FILING_JSON_MAX);
	bool whole = r->body.done;
	if (whole || (upload && f->in.n >= FILES_PIECE)) {
		f->answering = whole;
		return job_start(r, whole);
	}
	if (f->paused) {
		f->paused = false;
		http_exchange_resume(r->client.x);
	}
	return gw_park(r, WAIT_BODY, 0);
}

/* ---- the answer ---- */

static enum gw_step failure_answer(struct gw_req *r, const struct gw_filing *f)
{
	static const struct {
		enum cgn_code code;
		struct gw_refusal how;
	} rows[] = {
		{CGN_NOT_FOUND, {404, BAD_REQUEST, "not_found"}},
		{CGN_INVALID, {400, BAD_REQUEST, "invalid_request"}},
		{CGN_TOO_LARGE, {413, BAD_REQUEST, "file_too_large", .reason = "body"}},
		{CGN_OVERLOADED, {403, BAD_REQUEST, "quota_exceeded", .reason = "quota"}},
		{CGN_UNAVAILABLE,
			{503, "server_error", "storage_unavailable", .reason = "storage", .retry_after = 5}},
		{CGN_TLS,
			{503, "server_error", "storage_unavailable", .reason = "storage", .retry_after = 5}},
		{CGN_CANCELLED,
			{503, "server_error", "storage_unavailable", .reason = "storage", .retry_after = 5}},
		{CGN_STORAGE, {507, "server_error", "insufficient_storage", .reason = "storage"}},
	};
	struct gw_refusal how = {503, "server_error", "no_memory", .reason = "memory", .retry_after = 1};
	const struct quota_holder holder = {f->kind, cgn_str_of(f->share), 0};
	if (f->rc.code == CGN_OVERLOADED && f->told.share)
		return gw_share_refuse(r, &holder, &f->told, STORED_RETRY);
	if (f->rc.code == CGN_OVERLOADED && f->told.full)
		return gw_refuse(r,
			&(struct gw_refusal){503, "server_error", "overloaded", .reason = "storage",
				.retry_after = STORED_RETRY},
			"%s", f->err.msg);
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (rows[i].code == f->rc.code)
			how = rows[i].how;
	if (f->damaged)
		how = (struct gw_refusal){400, BAD_REQUEST, "invalid_encoding", .reason = "invalid"};
	how.param = f->param;
	return gw_refuse(r, &how, "%s", f->err.msg);
}

static void content_head(struct gw_req *r, const struct gw_filing *f)
{
	const struct http_field fields[] = {{CGN_STR("content-type"), CGN_STR("application/octet-stream")},
		{CGN_STR("x-request-id"), r->client.id}};
	r->answer.status = 200;
	r->answer.head_sent = true;
	r->answer.first_byte = cgn_loop_now(r->w->loop);
	http_exchange_head(r->client.x, 200, fields, CGN_COUNT(fields), (int64_t)(f->left + f->out.n));
}

/* Send the content piece by piece, as fast as the client takes it. */
static enum gw_step content_answer(struct gw_req *r, struct gw_filing *f)
{
	if (!r->answer.head_sent)
		content_head(r, f);
	const struct iovec iov = {f->out.p, f->out.n};
	if (f->out.n > 0)
		http_exchange_body(r->client.x, &iov, 1);
	r->answer.bytes_out += f->out.n;
	f->out.n = 0;
	if (r->client.x == NULL)
		return STEP_AGAIN;
	if (f->left > 0)
		return http_exchange_over_mark(r->client.x) ? gw_park(r, WAIT_CLIENT, 0) : job_start(r, true);
	r->answer.last_byte = cgn_loop_now(r->w->loop);
	r->answer.outcome = "ok";
	gw_goto(r, GW_ANSWER);
	http_exchange_end(r->client.x, NULL, 0);
	return STEP_AGAIN;
}

static enum gw_step files_step(struct gw_req *r, struct gw_filing *f)
{
	if (!cgn_ok(f->rc) && r->answer.head_sent) {
		gw_goto(r, GW_ANSWER);
		http_exchange_abort(r->client.x, f->rc.code);
		return STEP_AGAIN;
	}
	if (!cgn_ok(f->rc))
		return failure_answer(r, f);
	if (!f->answering)
		return body_take(r, f);
	if (f->op == FILING_CONTENT)
		return content_answer(r, f);
	return gw_reply_typed(r, 200, "application/json", &f->out);
}

enum gw_step gw_files(struct gw_req *r)
{
	enum gw_step s = r->filing == NULL ? filing_begin(r) : STEP_PARK;
	if (s == STEP_PARK && !r->plan.limited && op_takes_body(r->filing->op)) {
		gw_goto(r, GW_LIMIT);
		return STEP_AGAIN;
	}
	if (s == STEP_PARK && r->filing->busy)
		return gw_park(r, WAIT_POOL, 0);
	if (s == STEP_PARK)
		s = files_step(r, r->filing);
	struct gw_filing *f = r->filing;
	if (r->state != GW_FILES && f != NULL && f->paused && r->client.x != NULL) {
		f->paused = false;
		http_exchange_resume(r->client.x); /* The rest of a refused upload is dropped. */
	}
	return s;
}
