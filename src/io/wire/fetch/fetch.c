/* SPDX-License-Identifier: Apache-2.0 */
/* fetch: libcurl's easy interface, loaded by name. */
#define CURL_DISABLE_TYPECHECK
#include "io/wire/fetch/fetch.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define STALL_SECONDS 30L /* Without a byte the request has failed. */

/* The functions by their own names; curl.h declares their types. */
struct curl_lib {
	void *handle;
	__typeof__(&curl_global_init) global_init;
	__typeof__(&curl_easy_init) init;
	__typeof__(&curl_easy_setopt) set;
	__typeof__(&curl_easy_perform) perform;
	__typeof__(&curl_easy_getinfo) info;
	__typeof__(&curl_easy_reset) reset;
	__typeof__(&curl_easy_cleanup) cleanup;
	__typeof__(&curl_easy_strerror) text;
	__typeof__(&curl_slist_append) append;
	__typeof__(&curl_slist_free_all) free_all;
};
static struct curl_lib lib;
static pthread_once_t lib_once = PTHREAD_ONCE_INIT;
static bool lib_works;

/* ISO C does not convert the pointers of dlsym to functions; POSIX says that the bytes are the same. */
static bool symbol_find(const char *name, void *to)
{
	const void *p = dlsym(lib.handle, name);
	memcpy(to, &p, sizeof p);
	return p != NULL;
}

static void lib_load(void)
{
	static const char *const names[] = {"libcurl-gnutls.so.4", "libcurl.so.4"};
	for (size_t i = 0; i < CGN_COUNT(names) && lib.handle == NULL; i++)
		lib.handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	lib_works = lib.handle != NULL && symbol_find("curl_global_init", &lib.global_init) &&
		symbol_find("curl_easy_init", &lib.init) && symbol_find("curl_easy_setopt", &lib.set) &&
		symbol_find("curl_easy_perform", &lib.perform) &&
		symbol_find("curl_easy_getinfo", &lib.info) && symbol_find("curl_easy_reset", &lib.reset) &&
		symbol_find("curl_easy_cleanup", &lib.cleanup) &&
		symbol_find("curl_easy_strerror", &lib.text) &&
		symbol_find("curl_slist_append", &lib.append) &&
		symbol_find("curl_slist_free_all", &lib.free_all) &&
		lib.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

struct fetch {
	CURL *curl;
	/* The request that runs. */
	const struct fetch_request *rq;
	struct fetch_result *result;
	bool begun, refused, large;
	uint64_t got;
	char why[CURL_ERROR_SIZE];
};

CGN_RC fetch_open(struct fetch **out, struct cgn_err *err)
{
	(void)pthread_once(&lib_once, lib_load);
	if (!lib_works)
		return CGN_FAIL(err, UNSUPPORTED,
			"libcurl is needed for this and was not found (libcurl-gnutls.so.4, libcurl.so.4): apt install libcurl4");
	struct fetch *f = CGN_NEW(struct fetch);
	f->curl = lib.init();
	if (f->curl == NULL) {
		free(f);
		return CGN_FAIL(err, NO_MEMORY, "libcurl: out of memory");
	}
	*out = f;
	return CGN_OK;
}

void fetch_close(struct fetch **take)
{
	struct fetch *f = CGN_TAKE(take);
	if (f == NULL)
		return;
	lib.cleanup(f->curl);
	free(f);
}

/* ---- the answer ---- */

/* "bytes 100-199/200", "bytes * /200" (without the space) */
static void range_read(struct cgn_str v, struct fetch_result *r)
{
	struct cgn_str unit = cgn_str_split(&v, ' '), range = cgn_str_split(&v, '/');
	uint64_t total, first;
	if (!cgn_str_is(unit, "bytes"))
		return;
	if (v.p != NULL && cgn_str_u64(cgn_str_trim(v), &total))
		r->range_total = total;
	struct cgn_str begin = cgn_str_split(&range, '-');
	if (cgn_str_u64(cgn_str_trim(begin), &first))
		r->range_first = first;
}

/* Link: <https://host/path?cursor=x>; rel="next" */
static void link_read(struct cgn_str v, struct fetch_result *r)
{
	while (v.n > 0) {
		struct cgn_str one = cgn_str_trim(cgn_str_split(&v, ',')), rest = one;
		struct cgn_str url = cgn_str_trim(cgn_str_split(&rest, ';'));
		bool next = false;
		while (rest.n > 0) {
			struct cgn_str word = cgn_str_trim(cgn_str_split(&rest, ';'));
			next = next || cgn_str_is(word, "rel=\"next\"") || cgn_str_is(word, "rel=next");
		}
		if (next && url.n > 2 && url.p[0] == '<')
			(void)(cgn_str_copyz(r->link, sizeof r->link,
				       (struct cgn_str){url.p + 1, url.n - 2}) ||
				snprintf(r->link, sizeof r->link, "(%zu bytes)", url.n - 2) > 0);
	}
}

static void field_read(struct fetch_result *r, struct cgn_str name, struct cgn_str value)
{
	uint64_t n;
	if (cgn_str_eq_nocase(name, CGN_STR("etag")))
		(void)(cgn_str_copyz(r->etag, sizeof r->etag, value) || (r->etag[0] = '\0'));
	else if (cgn_str_eq_nocase(name, CGN_STR("content-length")) && cgn_str_u64(value, &n))
		r->length = n;
	else if (cgn_str_eq_nocase(name, CGN_STR("content-range")))
		range_read(value, r);
	else if (cgn_str_eq_nocase(name, CGN_STR("link")))
		link_read(value, r);
	else if (cgn_str_eq_nocase(name, CGN_STR("retry-after")) && cgn_str_u64(value, &n))
		r->retry_after = n < 3600 ? (unsigned)n : 3600;
	else if (cgn_str_eq_nocase(name, CGN_STR("www-authenticate")))
		(void)cgn_str_copyz(r->authenticate, sizeof r->authenticate, value);
}

/* A new head begins with its status line: after a redirect only the last one counts. */
static size_t on_header(char *p, size_t size, size_t n, void *user)
{
	struct fetch *f = user;
	struct cgn_str line = {p, size * n}, value;
	while (line.n > 0 && (line.p[line.n - 1] == '\n' || line.p[line.n - 1] == '\r'))
		line.n--;
	if (cgn_str_starts(line, "HTTP/")) {
		*f->result = (struct fetch_result){.length = UINT64_MAX, .range_total = UINT64_MAX};
		return size * n;
	}
	value = line;
	struct cgn_str name = cgn_str_split(&value, ':');
	if (value.p != NULL)
		field_read(f->result, name, cgn_str_trim(value));
	return size * n;
}

static size_t on_data(char *p, size_t size, size_t n, void *user)
{
	struct fetch *f = user;
	const struct fetch_request *rq = f->rq;
	long status = 0;
	if (!f->begun) {
		(void)lib.info(f->curl, CURLINFO_RESPONSE_CODE, &status);
		f->result->status = (int)status;
		f->begun = true;
		if (rq->on_head != NULL && !rq->on_head(rq->user, f->result))
			f->refused = true;
	}
	f->got += size * n;
	f->large = f->large || (rq->most > 0 && f->got > rq->most);
	if (f->refused || f->large || !rq->on_body(rq->user, p, size * n))
		return 0; /* libcurl ends the request. */
	return size * n;
}

static int on_progress(void *user, curl_off_t all, curl_off_t now, curl_off_t up_all, curl_off_t up)
{
	const struct fetch *f = user;
	(void)all;
	(void)now;
	(void)up_all;
	(void)up;
	return f->rq->stopped != NULL && f->rq->stopped(f->rq->user);
}

/* ---- the request ---- */

static size_t on_send(char *p, size_t size, size_t n, void *user)
{
	const struct fetch *f = user;
	if (f->rq->send_bytes == 0)
		return 0;
	size_t got = f->rq->send(f->rq->user, p, size * n);
	return got > 0 ? got : CURL_READFUNC_ABORT;
}

static void send_set(struct fetch *f)
{
	const struct fetch_request *rq = f->rq;
	if (rq->send != NULL) {
		(void)lib.set(f->curl, CURLOPT_UPLOAD, 1L);
		(void)lib.set(f->curl, CURLOPT_READFUNCTION, on_send);
		(void)lib.set(f->curl, CURLOPT_READDATA, f);
		(void)lib.set(f->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)rq->send_bytes);
		(void)lib.set(f->curl, CURLOPT_FOLLOWLOCATION, 0L);
		(void)lib.set(f->curl, CURLOPT_EXPECT_100_TIMEOUT_MS,
			1L); /* An empty "Expect:" would be signed. */
	}
	if (rq->method != NULL)
		(void)lib.set(f->curl, CURLOPT_CUSTOMREQUEST, rq->method);
}

static struct curl_slist *headers_make(const struct fetch_request *rq)
{
	struct curl_slist *list = NULL;
	char text[300];
	for (size_t i = 0; i < rq->n_headers; i++)
		list = lib.append(list, rq->headers[i]);
	/* S3 wants the hash that was signed; libcurl before 8.0 signs a body as an empty one unless it is
	 * told. */
	if (rq->aws_region != NULL)
		list = lib.append(list, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
	if (rq->from > 0 && rq->if_range != NULL) {
		(void)snprintf(text, sizeof text, "If-Range: %s", rq->if_range);
		list = lib.append(list, text);
	}
	return list;
}

static void options_set(struct fetch *f, struct curl_slist *headers)
{
	const struct fetch_request *rq = f->rq;
	char range[60], sign[160];
	(void)lib.set(f->curl, CURLOPT_URL, rq->url);
	(void)lib.set(f->curl, CURLOPT_HTTPHEADER, headers);
	(void)lib.set(f->curl, CURLOPT_PROTOCOLS_STR, "http,https");
	(void)lib.set(f->curl, CURLOPT_REDIR_PROTOCOLS_STR,
		strncmp(rq->url, "https:", 6) == 0 ? "https" : "http,https");
	(void)lib.set(f->curl, CURLOPT_FOLLOWLOCATION, 1L);
	(void)lib.set(f->curl, CURLOPT_MAXREDIRS, 8L);
	(void)lib.set(f->curl, CURLOPT_NOSIGNAL, 1L);
	(void)lib.set(f->curl, CURLOPT_CONNECTTIMEOUT, 20L);
	(void)lib.set(f->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
	(void)lib.set(f->curl, CURLOPT_LOW_SPEED_TIME, STALL_SECONDS);
	(void)lib.set(f->curl, CURLOPT_USERAGENT, "cognitora/" CGN_VERSION);
	(void)lib.set(f->curl, CURLOPT_ERRORBUFFER, f->why);
	(void)lib.set(f->curl, CURLOPT_HEADERFUNCTION, on_header);
	(void)lib.set(f->curl, CURLOPT_HEADERDATA, f);
	(void)lib.set(f->curl, CURLOPT_WRITEFUNCTION, on_data);
	(void)lib.set(f->curl, CURLOPT_WRITEDATA, f);
	(void)lib.set(f->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
	(void)lib.set(f->curl, CURLOPT_XFERINFODATA, f);
	(void)lib.set(f->curl, CURLOPT_NOPROGRESS, 0L);
	if (rq->ca_file != NULL)
		(void)lib.set(f->curl, CURLOPT_CAINFO, rq->ca_file);
	if (rq->to > rq->from)
		(void)snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)rq->from,
			(unsigned long long)rq->to - 1);
	else
		(void)snprintf(range, sizeof range, "%llu-", (unsigned long long)rq->from);
	if (rq->from > 0 || rq->to > 0)
		(void)lib.set(f->curl, CURLOPT_RANGE, range);
	send_set(f);
	if (rq->aws_region != NULL) {
		(void)snprintf(sign, sizeof sign, "aws:amz:%.100s:s3", rq->aws_region);
		(void)lib.set(f->curl, CURLOPT_AWS_SIGV4, sign);
		(void)lib.set(f->curl, CURLOPT_USERPWD, rq->aws_key);
	}
}

static cgn_rc failure_name(const struct fetch *f, CURLcode code, struct cgn_err *err)
{
	const char *why = f->why[0] != '\0' ? f->why : lib.text(code), *url = f->rq->url;
	int n = (int)strcspn(url, "?"); /* A query may be a signature. */
	if (f->large)
		return CGN_FAIL(err, TOO_LARGE, "%.*s: the answer has more than %llu bytes", n, url,
			(unsigned long long)f->rq->most);
	switch ((int)code) {
	case CURLE_WRITE_ERROR:
	case CURLE_ABORTED_BY_CALLBACK:
		return CGN_FAIL(err, CANCELLED, "%.*s: ended", n, url);
	case CURLE_URL_MALFORMAT:
	case CURLE_UNSUPPORTED_PROTOCOL:
		return CGN_FAIL(err, INVALID, "%.*s: %s", n, url, why);
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_SSL_CACERT_BADFILE:
		return CGN_FAIL(err, TLS, "%.*s: %s", n, url, why);
	default:
		return CGN_FAIL(err, UNAVAILABLE, "%.*s: %s", n, url, why);
	}
}

CGN_RC fetch_run(struct fetch *f, const struct fetch_request *rq, struct fetch_result *out,
	struct cgn_err *err)
{
	struct curl_slist *headers;
	long status = 0;
	f->rq = rq;
	f->result = out;
	f->begun = f->refused = f->large = false;
	f->got = 0;
	f->why[0] = '\0';
	*out = (struct fetch_result){.length = UINT64_MAX, .range_total = UINT64_MAX};
	lib.reset(f->curl);
	headers = headers_make(rq);
	options_set(f, headers);
	CURLcode code = lib.perform(f->curl);
	lib.free_all(headers);
	(void)lib.info(f->curl, CURLINFO_RESPONSE_CODE, &status);
	out->status = (int)status;
	if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && f->refused))
		return CGN_OK;
	return failure_name(f, code, err);
}

/* ---- small documents ---- */

static bool document_take(void *user, const void *p, size_t n)
{
	struct cgn_buf *b = user;
	cgn_buf_add(b, p, n);
	return !b->bad;
}

CGN_RC fetch_document(struct fetch *f, struct fetch_request *rq, struct fetch_result *result,
	struct cgn_buf *out, struct cgn_err *err)
{
	rq->on_body = document_take;
	rq->user = out;
	return fetch_run(f, rq, result, err);
}
