/* SPDX-License-Identifier: Apache-2.0 */
/* page: its files. The build turns each into string literals. */
#include "joint/daemon/page/page.h"

#define PAGE_POLICY                                                                     \
	"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " \
	"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

/* A compiler need not take literals of more than 4,095 bytes; gcc and clang do. */
#pragma GCC diagnostic ignored "-Woverlength-strings"
static const char html[] =
#include "page.html.inc"
	;
static const char style[] =
#include "page.css.inc"
	;
static const char base_script[] =
#include "page.js.inc"
	;
static const char views_script[] =
#include "views.js.inc"
	;
static const char request_script[] =
#include "request.js.inc"
	;

static const char several_script[] =
#include "several.js.inc"
	;

static const struct {
	const char *path, *type, *text;
	size_t n;
} files[] = {
	{"/page/", "text/html; charset=utf-8", html, sizeof html - 1},
	{"/page/page.css", "text/css; charset=utf-8", style, sizeof style - 1},
	{"/page/page.js", "text/javascript; charset=utf-8", base_script, sizeof base_script - 1},
	{"/page/views.js", "text/javascript; charset=utf-8", views_script, sizeof views_script - 1},
	{"/page/request.js", "text/javascript; charset=utf-8", request_script, sizeof request_script - 1},
	{"/page/several.js", "text/javascript; charset=utf-8", several_script, sizeof several_script - 1},
};

#define FIELD(name, value) {{name, sizeof(name) - 1}, {value, sizeof(value) - 1}}
static const struct http_field fields[] = {FIELD("content-security-policy", PAGE_POLICY),
	FIELD("referrer-policy", "no-referrer")};
static const struct http_field to_page[] = {FIELD("location", "page/")};

void page_get(void *state, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *reply)
{
	(void)state;
	(void)body;
	struct cgn_str rest = h->path, path = cgn_str_split(&rest, '?');
	for (size_t i = 0; i < CGN_COUNT(files); i++) {
		if (!cgn_str_is(path, files[i].path))
			continue;
		reply->content_type = files[i].type;
		reply->fields = fields;
		reply->n_fields = CGN_COUNT(fields);
		cgn_buf_add(&reply->body, files[i].text, files[i].n);
		return;
	}
	svc_admin_error(reply, 404, "not_found", "the page has no such file; it begins at /page/");
}

void page_get_of_several(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	static const char before[] = "<html", mark[] = " data-routers";
	page_get(state, h, body, reply);
	const char *at =
		reply->body.n > 0 ? memmem(reply->body.p, reply->body.n, before, sizeof before - 1) : NULL;
	if (at == NULL || !cgn_str_starts(cgn_str_of(reply->content_type), "text/html"))
		return;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf plain = reply->body;
	size_t cut = (size_t)(at - (const char *)plain.p) + sizeof before - 1;
	reply->body = (struct cgn_buf){0};
	cgn_buf_add(&reply->body, plain.p, cut);
	cgn_buf_putz(&reply->body, mark);
	cgn_buf_add(&reply->body, plain.p + cut, plain.n - cut);
}

static bool asks_for_html(struct cgn_str accept)
{
	while (accept.n > 0) {
		struct cgn_str type = cgn_str_trim(cgn_str_split(&accept, ','));
		if (cgn_str_is(type, "text/html") || cgn_str_starts(type, "text/html;"))
			return true;
	}
	return false;
}

bool page_redirect(const struct http_head *h, struct svc_admin_reply *reply)
{
	if (!asks_for_html(http_head_get(h, "accept")))
		return false;
	reply->status = 302;
	reply->content_type = "text/plain; charset=utf-8";
	reply->fields = to_page;
	reply->n_fields = CGN_COUNT(to_page);
	cgn_buf_putz(&reply->body, "the page is at page/\n");
	return true;
}
