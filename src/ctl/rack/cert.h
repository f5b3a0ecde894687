/* SPDX-License-Identifier: Apache-2.0 */
/* cert: the CA of a rack and the certificates of its hosts, in one folder of the machine that installs. */
#pragma once
#include "io/net/pki/pki.h"
#include "policy/fleet/rack/rack.h"

enum rack_cert { RACK_CERT_ROUTER, RACK_CERT_AGENT, RACK_CERT_METRICS, RACK_CERT_ETCD, RACK_CERTS };
const char *rack_cert_name(enum rack_cert c); /* "agent": agent.pem and agent.key of a host. */
unsigned rack_cert_roles(enum rack_cert c);   /* Roles whose programs use it. */

struct rack_pki {
	const char *dir, *cluster;
	bool make;          /* Make missing keys and certificates. */
	struct pki_pair ca; /* Empty: there is none yet. */
};
/* Load the CA, or make it, and the certificate "admin", with |p|->make. */
CGN_RC rack_pki_open(struct rack_pki *p, struct cgn_err *err);
void rack_pki_close(struct rack_pki *p);
/* Read a host's certificate DIR/HOST.NAME.pem and its key. It is made with |p|->make, and else left empty, if it is
 * missing, ends soon, lacks the host's address, or is of another CA. */
CGN_RC rack_pki_pair(struct rack_pki *p, const struct rack_host *h, enum rack_cert c, struct pki_pair *out,
	struct cgn_err *err);
