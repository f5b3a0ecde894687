/* SPDX-License-Identifier: Apache-2.0 */
/* site: whether a web page that a browser has open may ask a port that wants no credential. A page of another site
 * can make the browser send requests here; and the owner of a name can point it at this machine once the page is open
 * (DNS rebinding), so that the browser takes this port for the page's own site. Hence the name in the request is judged,
 * and the page that the browser names. Other programs than browsers can send any name and page. Pure; any thread. */
#pragma once
#include "base/core/err.h"
#include "policy/config/config.h"

struct site_rules {
	const char *machine;      /* Name of this machine, with or without a domain; NULL: unknown. */
	const char *listen;       /* Address at which the port listens, whose host is a name too. */
	const char *const *hosts; /* security.allowed_hosts: a name, "*.domain", or "*" for all. */
	const char *const
		*origins; /* Origins whose pages may ask; "*" stands for any characters but a slash. */
	size_t n_hosts, n_origins;
	bool near_pages; /* Pages of this machine may ask, and those inside of programs (app://...). */
};

struct site_request {
	struct cgn_str method;
	struct cgn_str host;                   /* The field Host, or :authority. */
	struct cgn_str origin;                 /* The field Origin. */
	struct cgn_str fetch_site, fetch_mode; /* The fields Sec-Fetch-Site and -Mode. */
	bool local;                            /* The client is on this machine. */
	bool credential;                       /* The client showed one: its request may go to any name. */
};

enum site_verdict {
	SITE_FINE,
	SITE_OTHER_NAME, /* The request was sent to a name that is not known to be this machine's. */
	SITE_OTHER_PAGE, /* A page of another site made the browser send it. */
};
/* An IP address, localhost, the machine's name, the name at which the port listens and those of |hosts| are known. So
 * are, for clients of other machines, names that no public name server tells: of one word, and below .local,
 * .internal and .svc. A browser sends no request without a name. */
enum site_verdict site_judge(const struct site_rules *s, const struct site_request *q);
/* May pages of |origin| read the answers (CORS)? Pages of the port's own site need no such leave. */
bool site_may_read(const struct site_rules *s, struct cgn_str origin);

/* CGN_INVALID: a row of security.allowed_hosts is not a name, or one of security.allowed_origins not an origin. */
CGN_RC site_check_config(const struct config *c, struct cgn_err *err);
