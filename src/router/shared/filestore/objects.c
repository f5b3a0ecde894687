/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/filestore/objects.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "io/wire/fetch/fetch.h"

#define HANDLES     8 /* Handles with open connections that are kept. */
#define ANSWER_MAX  ((size_t)65536)
#define SECRET_MAX  ((size_t)512)
#define PARTS_MAX   10000U
#define PAUSE_FIRST (300 * CGN_MSEC) /* Before the second try; twice as long before the third one. */

struct objects {
	char base[1600]; /* ENDPOINT/BUCKET/PREFIX */
	char region[64], key[SECRET_MAX];
	char *ca_file; /* NULL: the system's. */
	atomic_bool stopped;
	pthread_mutex_t lock; /* Guards the handles. */
	struct fetch *idle[HANDLES];
	size_t n_idle;
};

/* ---- open ---- */

static CGN_RC key_read(struct objects *o, const char *path, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_TRY(disk_read_file(path, SECRET_MAX, &text, err));
	struct cgn_str rest = cgn_buf_view(&text), line = cgn_str_trim(cgn_str_split(&rest, '\n'));
	if (line.n > 0 && line.p[line.n - 1] == '\r')
		line.n--;
	struct cgn_str secret = line, id = cgn_str_split(&secret, ':');
	return secret.n > 0 && id.n > 0 && cgn_str_copyz(o->key, sizeof o->key, line)
		? CGN_OK
		: CGN_FAIL(err, INVALID, "%s has no KEY-ID:SECRET on its first line", path);
}

CGN_RC objects_open(const struct objects_cfg *cfg, struct objects **out, struct cgn_err *err)
{
	CGN_ON_EXIT(objects_close) struct objects *o = CGN_NEW(struct objects);
	(void)pthread_mutex_init(&o->lock, NULL);
	CGN_TRY(key_read(o, cfg->credentials_file, err));
	(void)snprintf(o->region, sizeof o->region, "%s", cfg->region);
	if (snprintf(o->base, sizeof o->base, "%s/%s/%s", cfg->endpoint, cfg->bucket, cfg->prefix) >=
		(int)sizeof o->base)
		return CGN_FAIL(err, INVALID, "endpoint, bucket and prefix are too long");
	o->ca_file = cgn_str_dup_maybe(cfg->ca_file);
	CGN_TRY(fetch_open(&o->idle[0], err));
	o->n_idle = 1;
	*out = CGN_TAKE(&o);
	return CGN_OK;
}

void objects_close(struct objects **take)
{
	struct objects *o = CGN_TAKE(take);
	if (o == NULL)
		return;
	while (o->n_idle > 0)
		fetch_close(&o->idle[--o->n_idle]);
	(void)pthread_mutex_destroy(&o->lock);
	free(o->ca_file);
	free(o);
}

void objects_stop(struct objects *o)
{
	atomic_store(&o->stopped, true);
}

/* ---- a request ---- */

/* A content that goes to the server, or comes from it. */
struct transfer {
	struct objects *o;
	int fd;
	uint64_t at, left;   /* Sent from here on. */
	struct cgn_str text; /* Sent instead, when |fd| is -1. */
	struct cgn_buf *out; /* Bytes of an answer of 2xx; NULL: they go to |fd|. */
	struct cgn_buf refusal;
	bool good;
	int failed; /* errno of |fd|. */
};

static CGN_RC handle_take(struct objects *o, struct fetch **out, struct cgn_err *err)
{
	*out = NULL;
	(void)pthread_mutex_lock(&o->lock);
	if (o->n_idle > 0)
		*out = o->idle[--o->n_idle];
	(void)pthread_mutex_unlock(&o->lock);
	return *out != NULL ? CGN_OK : fetch_open(out, err);
}

static void handle_return(struct objects *o, struct fetch **take)
{
	(void)pthread_mutex_lock(&o->lock);
	if (o->n_idle < HANDLES) {
		o->idle[o->n_idle++] = *take;
		*take = NULL;
	}
	(void)pthread_mutex_unlock(&o->lock);
	fetch_close(take);
}

static bool transfer_stopped(void *user)
{
	const struct transfer *t = user;
	return atomic_load(&t->o->stopped);
}

static bool transfer_head(void *user, const struct fetch_result *r)
{
	((struct transfer *)user)->good = r->status / 100 == 2;
	return true;
}

static bool transfer_body(void *user, const void *p, size_t n)
{
	struct transfer *t = user;
	if (!t->good) {
		cgn_buf_add(&t->refusal, p, t->refusal.n + n <= ANSWER_MAX ? n : 0);
		return true;
	}
	if (t->out != NULL) {
		cgn_buf_add(t->out, p, n);
		return !t->out->bad;
	}
	for (const char *from = p; n > 0;) {
		ssize_t m = pwrite(t->fd, from, n, (off_t)t->at);
		if (m < 0 && errno != EINTR) {
			t->failed = errno;
			return false;
		}
		from += m > 0 ? m : 0;
		n -= m > 0 ? (size_t)m : 0;
		t->at += m > 0 ? (uint64_t)m : 0;
	}
	return true;
}

static size_t transfer_send(void *user, char *to, size_t n)
{
	struct transfer *t = user;
	n = n < t->left ? n : (size_t)t->left;
	if (t->fd < 0)
		memcpy(to, t->text.p + (t->text.n - t->left), n);
	ssize_t got = t->fd < 0 ? (ssize_t)n : pread(t->fd, to, n, (off_t)t->at);
	if (got < 0)
		t->failed = errno;
	t->at += got > 0 ? (uint64_t)got : 0;
	t->left -= got > 0 ? (uint64_t)got : 0;
	return got > 0 ? (size_t)got : 0;
}

/* Find the text of <NAME> in |xml|; p is NULL: there is none. */
static struct cgn_str element_find(struct cgn_str xml, const char *name)
{
	char open[40], close[40];
	int n = snprintf(open, sizeof open, "<%s>", name), m = snprintf(close, sizeof close, "</%s>", name);
	const char *from = xml.n > 0 ? memmem(xml.p, xml.n, open, (size_t)n) : NULL;
	if (from == NULL)
		return (struct cgn_str){NULL, 0};
	from += n;
	const char *to = memmem(from, xml.n - (size_t)(from - xml.p), close, (size_t)m);
	return to != NULL ? (struct cgn_str){from, (size_t)(to - from)} : (struct cgn_str){NULL, 0};
}

static CGN_RC refusal_name(const struct fetch_request *rq, int status, struct cgn_str xml,
	struct cgn_err *err)
{
	struct cgn_str code = element_find(xml, "Code"), why = element_find(xml, "Message");
	enum cgn_code as = status == 404 && cgn_str_is(code, "NoSuchKey") ? CGN_NOT_FOUND
		: status >= 500 || status == 429                          ? CGN_UNAVAILABLE
									  : CGN_STORAGE;
	return CGN_FAIL_AS(err, as, "the S3 server answered %s %.*s with %d %.*s: %.*s",
		rq->method != NULL ? rq->method : "GET", (int)strcspn(rq->url, "?"), rq->url, status,
		(int)(code.n < 40 ? code.n : 40), code.p != NULL ? code.p : "",
		(int)(why.n < 100 ? why.n : 100), why.p != NULL ? why.p : "");
}

static CGN_RC request_once(struct transfer *t, struct fetch_request *rq, struct fetch_result *result,
	struct cgn_err *err)
{
	struct fetch *f;
	CGN_TRY(handle_take(t->o, &f, err));
	t->refusal.n = 0;
	t->good = false;
	cgn_rc rc = fetch_run(f, rq, result, err);
	handle_return(t->o, &f);
	if (atomic_load(&t->o->stopped))
		return CGN_FAIL(err, CANCELLED, "the router ends");
	if (t->failed != 0)
		return CGN_FAIL(err, STORAGE, "%s", strerror(t->failed));
	if (!cgn_ok(rc))
		return rc;
	return result->status / 100 == 2 ? CGN_OK
					 : refusal_name(rq, result->status, cgn_buf_view(&t->refusal), err);
}

static void pause_before(unsigned again)
{
	uint64_t pause = PAUSE_FIRST << again;
	const struct timespec left = {(time_t)(pause / CGN_SEC), (long)(pause % CGN_SEC)};
	(void)nanosleep(&left, NULL);
}

/* Run the request, again when the server cannot answer now. |t| has the bytes to send and to receive, from
 * the beginning. */
static CGN_RC request_run(struct transfer *t, struct fetch_request *rq, struct fetch_result *result,
	struct cgn_err *err)
{
	const struct transfer first = *t;
	const size_t had = t->out != NULL ? t->out->n : 0;
	cgn_rc rc = CGN_OK;
	rq->ca_file = t->o->ca_file;
	rq->aws_region = t->o->region;
	rq->aws_key = t->o->key;
	rq->on_head = transfer_head;
	rq->on_body = transfer_body;
	rq->stopped = transfer_stopped;
	rq->user = t;
	for (unsigned i = 0; i < OBJECTS_TRIES; i++) {
		if (i > 0)
			pause_before(i - 1);
		struct cgn_buf refusal = t->refusal;
		*t = first;
		t->refusal = refusal;
		if (t->out != NULL)
			t->out->n = had;
		rc = request_once(t, rq, result, err);
		if (rc.code != CGN_UNAVAILABLE)
			break;
	}
	cgn_buf_fini(&t->refusal);
	return rc;
}

static void url_make(const struct objects *o, const char *id, const char *query, char out[2400])
{
	(void)snprintf(out, 2400, "%s%s%s", o->base, id, query);
}

/* ---- reading ---- */

CGN_RC objects_read(struct objects *o, const char *id, uint64_t at, size_t n, struct cgn_buf *out,
	struct cgn_err *err)
{
	char url[2400];
	struct fetch_result result;
	struct transfer t = {.o = o, .fd = -1, .out = out};
	size_t had = out->n;
	url_make(o, id, "", url);
	struct fetch_request rq = {.url = url, .from = at, .to = at + n};
	CGN_TRY(request_run(&t, &rq, &result, err));
	/* A server that ignores the range begins with the first byte. */
	bool whole = out->n - had == n && (result.status == 206 ? result.range_first == at : at == 0);
	return whole ? CGN_OK
		     : CGN_FAIL(err, STORAGE, "the object %s has not the bytes that were asked for", id);
}

CGN_RC objects_get(struct objects *o, const char *id, uint64_t bytes, int fd, struct cgn_err *err)
{
	char url[2400];
	struct fetch_result result;
	struct transfer t = {.o = o, .fd = fd};
	url_make(o, id, "", url);
	struct fetch_request rq = {.url = url, .most = bytes};
	CGN_TRY(request_run(&t, &rq, &result, err));
	return t.at == bytes ? CGN_OK : CGN_FAIL(err, STORAGE, "the object %s is shorter than it was", id);
}

CGN_RC objects_delete(struct objects *o, const char *id, struct cgn_err *err)
{
	char url[2400];
	struct fetch_result result;
	struct transfer t = {.o = o, .fd = -1};
	url_make(o, id, "", url);
	struct fetch_request rq = {.url = url, .method = "DELETE"};
	cgn_rc rc = request_run(&t, &rq, &result, err);
	return rc.code == CGN_NOT_FOUND ? CGN_OK : rc;
}

/* ---- writing ---- */

static CGN_RC part_put(struct objects *o, const char *url, int fd, uint64_t at, uint64_t bytes,
	struct fetch_result *result, struct cgn_err *err)
{
	struct transfer t = {.o = o, .fd = fd, .at = at, .left = bytes};
	struct fetch_request rq = {.url = url, .method = "PUT", .send = transfer_send, .send_bytes = bytes};
	return request_run(&t, &rq, result, err);
}

/* POST |body|, and append the answer to |out|. */
static CGN_RC post_run(struct objects *o, const char *url, struct cgn_str body, struct cgn_buf *out,
	struct cgn_err *err)
{
	struct fetch_result result;
	struct transfer t = {.o = o, .fd = -1, .text = body, .left = body.n, .out = out};
	struct fetch_request rq = {.url = url,
		.method = "POST",
		.send = transfer_send,
		.send_bytes = body.n,
		.most = ANSWER_MAX};
	return request_run(&t, &rq, &result, err);
}

/* Append |s| as a value of a query. */
static void query_escape(struct cgn_str s, struct cgn_buf *out)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
			c == '-' || c == '_' || c == '.' || c == '~';
		if (plain)
			cgn_buf_char(out, (char)c);
		else
			cgn_buf_fmt(out, "%%%02X", c);
	}
}

static CGN_RC parts_put(struct objects *o, const char *id, const char *upload, int fd, uint64_t at,
	uint64_t bytes, struct cgn_buf *list, struct cgn_err *err)
{
	uint64_t size = bytes / PARTS_MAX + 1 > OBJECTS_PART ? bytes / PARTS_MAX + 1 : OBJECTS_PART;
	cgn_buf_putz(list, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	for (unsigned n = 1; bytes > 0; n++) {
		char query[700], url[2400];
		struct fetch_result result;
		uint64_t now = bytes < size ? bytes : size;
		(void)snprintf(query, sizeof query, "?partNumber=%u&uploadId=%s", n, upload);
		url_make(o, id, query, url);
		CGN_TRY(part_put(o, url, fd, at, now, &result, err));
		cgn_buf_fmt(list, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", n, result.etag);
		at += now;
		bytes -= now;
	}
	cgn_buf_putz(list, "</CompleteMultipartUpload>");
	return list->bad ? CGN_FAIL(err, NO_MEMORY, "out of memory") : CGN_OK;
}

static CGN_RC parts_complete(struct objects *o, const char *id, const char *upload, int fd, uint64_t at,
	uint64_t bytes, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf list = {0}, answer = {0};
	char query[700], url[2400];
	(void)snprintf(query, sizeof query, "?uploadId=%s", upload);
	url_make(o, id, query, url);
	cgn_rc rc = parts_put(o, id, upload, fd, at, bytes, &list, err);
	if (cgn_ok(rc))
		rc = post_run(o, url, cgn_buf_view(&list), &answer, err);
	/* An upload that failed may be told by a body, after the status 200. */
	if (cgn_ok(rc) && element_find(cgn_buf_view(&answer), "ETag").p == NULL)
		rc = CGN_FAIL(err, UNAVAILABLE, "the S3 server did not put the parts of %s together", id);
	if (cgn_ok(rc))
		return rc;
	struct cgn_err ignored;
	struct fetch_result result;
	struct transfer t = {.o = o, .fd = -1};
	struct fetch_request rq = {.url = url, .method = "DELETE"};
	(void)!cgn_ok(request_run(&t, &rq, &result,
		&ignored)); /* Parts that stay are removed by the bucket's rules. */
	return rc;
}

static CGN_RC multipart_put(struct objects *o, const char *id, int fd, uint64_t at, uint64_t bytes,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf answer = {0}, upload = {.limit = 600};
	char url[2400];
	url_make(o, id, "?uploads=", url);
	CGN_TRY(post_run(o, url, CGN_STR(""), &answer, err));
	query_escape(element_find(cgn_buf_view(&answer), "UploadId"), &upload);
	if (upload.bad || upload.n == 0)
		return CGN_FAIL(err, STORAGE, "the S3 server began no upload of %s", id);
	return parts_complete(o, id, cgn_buf_z(&upload), fd, at, bytes, err);
}

CGN_RC objects_put(struct objects *o, const char *id, int fd, uint64_t at, uint64_t bytes,
	struct cgn_err *err)
{
	char url[2400];
	struct fetch_result result;
	if (bytes > OBJECTS_PART)
		return multipart_put(o, id, fd, at, bytes, err);
	url_make(o, id, "", url);
	return part_put(o, url, fd, at, bytes, &result, err);
}
