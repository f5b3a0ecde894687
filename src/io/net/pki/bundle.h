/* SPDX-License-Identifier: Apache-2.0 */
/* bundle: texts of several certificates, as ca_file has them while one authority replaces another. No files. */
#pragma once
#include "io/net/pki/pki.h"

#define PKI_BUNDLE_MAX 8 /* Authorities of a bundle. */
/* Return the first certificate or list of a PEM text, with its line end; the text itself if it has none. */
struct cgn_str pki_first(struct cgn_str text);
/* Append to |bundle| each authority of |text| that is not over at |now| (Unix seconds) and not there yet, up
 * to PKI_BUNDLE_MAX. Other certificates and other texts are left out. */
CGN_RC pki_bundle_add(struct cgn_buf *bundle, struct cgn_str text, int64_t now, struct cgn_err *err);
/* Did an authority of |bundle| sign |pem|? Its dates do not count. */
bool pki_bundle_signed(struct cgn_str bundle, struct cgn_str pem);
/* Write the name of the authority after |was|: "prod cluster CA" becomes "prod cluster CA 2", and that one "... 3". Verifiers
 * find authorities by their names. */
void pki_next_name(const char *was, char *out, size_t cap);
