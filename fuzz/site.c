/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz site: no head of a request breaks the judgement of its name and page, and a name that is a public one's is never
 * known. The input is lines: host, origin, Sec-Fetch-Site, a row of allowed_hosts, a row of allowed_origins. */
#include <stdlib.h>

#include "base/core/err.h"
#include "policy/who/site/site.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char *line_take(struct cgn_str *rest)
{
	struct cgn_str line = cgn_str_split(rest, '\n');
	return cgn_str_dupz(line.p != NULL ? line : CGN_STR(""));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_str rest = {(const char *)data, n};
	char *line[5];
	for (size_t i = 0; i < CGN_COUNT(line); i++)
		line[i] = line_take(&rest);
	const char *const hosts[] = {line[3]}, *const origins[] = {line[4]};
	const struct site_rules s = {.machine = "box",
		.listen = "127.0.0.1:8080",
		.hosts = hosts,
		.n_hosts = line[3][0] != '\0',
		.origins = origins,
		.n_origins = line[4][0] != '\0',
		.near_pages = true};
	struct site_request q = {.method = CGN_STR("POST"),
		.host = cgn_str_of(line[0]),
		.origin = cgn_str_of(line[1]),
		.fetch_site = cgn_str_of(line[2])};
	for (int local = 0; local < 2; local++) {
		q.local = local != 0;
		enum site_verdict v = site_judge(&s, &q);
		size_t k = q.host.n;
		if (s.n_hosts == 0 && k > 8 && memcmp(q.host.p + k - 8, ".example", 8) == 0 &&
			memchr(q.host.p, ':', k) == NULL && q.host.p[0] != '[')
			CGN_MUST(v == SITE_OTHER_NAME);
	}
	for (size_t i = 0; i < CGN_COUNT(line); i++)
		free(line[i]);
	return 0;
}
