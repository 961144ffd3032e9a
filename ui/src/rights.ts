// SPDX-License-Identifier: Apache-2.0
// What the person who looks may do, as the server says.
import { useEffect, useState } from 'preact/hooks';
import { json } from './api';
import { useAround } from './hooks';
import type { Ref } from './route';

export interface Right {
  verb: string;
  of: Ref;
  subresource?: string;
  namespace: string;
  name?: string;
}

/** may asks whether something is allowed; without an answer it is not. */
export function may(r: Right): Promise<boolean> {
  const resourceAttributes = {
    verb: r.verb,
    group: r.of.group,
    resource: r.of.resource,
    namespace: r.namespace,
    ...(r.subresource && { subresource: r.subresource }),
    ...(r.name && { name: r.name }),
  };
  return json<{ status?: { allowed?: boolean } }>('/apis/authorization.k8s.io/v1/selfsubjectaccessreviews', {
    method: 'POST',
    type: 'application/json',
    body: JSON.stringify({ apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', spec: { resourceAttributes } }),
  }).then(
    (answer) => !!answer.status?.allowed,
    () => false,
  );
}

/** useMay is whether all of some rights are given: undefined until it is known, false where nothing may be changed. */
export function useMay(rights: Right[]): boolean | undefined {
  const { session } = useAround();
  const [allowed, set] = useState<boolean>();
  const asked = JSON.stringify(rights);
  useEffect(() => {
    set(undefined);
    if (session.readOnly || rights.length === 0) {
      set(false);
      return undefined;
    }
    let left = false;
    void Promise.all(rights.map(may)).then((all) => {
      if (!left) set(all.every(Boolean));
    });
    return () => {
      left = true;
    };
  }, [asked, session.readOnly]);
  return allowed;
}
