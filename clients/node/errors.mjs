// What a failed call says of itself: its code, and the details of google.rpc that come with it.
import { status } from '@grpc/grpc-js';
import { fromJSON } from '@grpc/proto-loader';

const field = (type, id, rule) => ({ type, id, ...(rule && { rule }) });
const rpc = {
  Any: { fields: { type_url: field('string', 1), value: field('bytes', 2) } },
  Status: { fields: { message: field('string', 2), details: field('Any', 3, 'repeated') } },
  ErrorInfo: { fields: { reason: field('string', 1), domain: field('string', 2) } },
  FieldViolation: { fields: { field: field('string', 1), description: field('string', 2) } },
  BadRequest: { fields: { field_violations: field('FieldViolation', 1, 'repeated') } },
  Duration: { fields: { seconds: field('int64', 1), nanos: field('int32', 2) } },
  RetryInfo: { fields: { retry_delay: field('Duration', 1) } },
};
const messages = fromJSON({ nested: { google: { nested: { rpc: { nested: rpc } } } } }, { keepCase: true, longs: Number });
const decode = (name, bytes) => messages[`google.rpc.${name}`].deserialize(bytes);

/** Return the details of an error by their names: { ErrorInfo, BadRequest, RetryInfo }, those that are there. */
export function detailsOf(error) {
  const [packed] = error.metadata?.get('grpc-status-details-bin') ?? [];
  const found = {};
  for (const { type_url: url, value } of packed ? decode('Status', packed).details : []) {
    const name = url.slice(url.lastIndexOf('.') + 1);
    if (['ErrorInfo', 'BadRequest', 'RetryInfo'].includes(name)) found[name] = decode(name, value);
  }
  return found;
}

/** Return one line: code, reason, field, when to come back, and the message. */
export function describe(error) {
  const { ErrorInfo: info, BadRequest: bad, RetryInfo: retry } = detailsOf(error);
  const delay = retry?.retry_delay;
  const parts = [
    status[error.code] ?? 'ERROR',
    info && `reason ${info.reason}`,
    bad?.field_violations?.length && `field ${bad.field_violations[0].field}`,
    delay && `retry in ${(delay.seconds ?? 0) + (delay.nanos ?? 0) / 1e9} s`,
  ];
  return `${parts.filter(Boolean).join(', ')}: ${error.details ?? error.message}`;
}
