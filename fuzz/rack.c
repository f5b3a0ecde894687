/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz rack: an inventory and the report of a host. Read values are within their bounds, and a host's
 * settings, where they are accepted, are the same when they are written again. */
#include <stdlib.h>
#include <string.h>

#include "policy/fleet/rack/rack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void host_try(struct rack *r, const struct rack_host *h)
{
	struct cgn_err err;
	struct cgn_buf once = {0}, twice = {0};
	CGN_MUST(h->address != NULL && h->address[0] != '-' && h->name[0] != '-' && h->name[0] != '.');
	CGN_MUST(strpbrk(h->name, "/ \n") == NULL && strpbrk(h->address, " \n") == NULL);
	if (cgn_ok(rack_settings(r, h, &once, &err))) {
		CGN_MUST(cgn_ok(rack_settings(r, h, &twice, &err)));
		CGN_MUST(cgn_str_eq(cgn_buf_view(&once), cgn_buf_view(&twice)));
		CGN_MUST(rack_changed(cgn_buf_view(&once), cgn_buf_view(&twice)) == 0);
	}
	once.n = 0;
	rack_etcd_env(r, h, &once);
	rack_ports(h, &once);
	cgn_buf_fini(&once);
	cgn_buf_fini(&twice);
}

static void report_try(struct cgn_str text)
{
	static struct rack_seen seen;
	struct cgn_err err;
	if (!cgn_ok(rack_report_read(text, &seen, &err)))
		return;
	for (size_t i = 0; i < seen.n; i++) {
		const struct rack_seen_file *f = &seen.files[i];
		CGN_MUST(f->sha256.n == 64 && f->path.p[0] == '/');
		CGN_MUST(f->text.n == 0 || (f->text.p > text.p && f->text.p + f->text.n < text.p + text.n));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct rack *r = NULL;
	struct cgn_err err;
	struct cgn_str text = {(const char *)data, n};
	report_try(text);
	if (!cgn_ok(rack_read("rack.toml", text, &r, &err)))
		return 0;
	CGN_MUST(r->n > 0 && r->n <= RACK_MAX_HOSTS);
	for (size_t i = 0; i < r->n && i < 4; i++)
		host_try(r, &r->hosts[i]);
	rack_free(&r);
	return 0;
}
