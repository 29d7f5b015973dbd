-- Humans, endpoints, credentials and bound logins.
--
-- A human owns endpoints; an endpoint is vended to one agent with queues, verbs and receivers it may
-- use. Its credential is minted here, shown once, and stored as SHA-256 only. Whoever changes a
-- grant, a credential or an endpoint says so on the channel switchboard_control (payload: the
-- endpoint's id), so that gateways drop what they remember and end what is revoked.
-- Lock order: the endpoint's row, then its todos in order of id.

create or replace function switchboard.default_verbs() returns text[]
language sql immutable set search_path = switchboard, pg_temp
as $$
    select array['list_todos', 'get_todo', 'read_event', 'claim', 'claim_next', 'heartbeat', 'complete', 'fail', 'release']
$$;
comment on function switchboard.default_verbs() is 'The verbs an endpoint gets when nothing else is said: those of the drain loop.';

create or replace function switchboard.create_human(p_name text)
returns table (id uuid, name text)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    perform check_text('name', p_name, 100, true);
    if p_name ~ '[[:cntrl:]]' then
        perform refuse_argument('name', 'must be one line');
    end if;
    return query insert into humans as h (name, created_at) values (p_name, clock())
        on conflict on constraint humans_name_key do nothing returning h.id, h.name;
    if not found then
        perform refuse('conflict', 'there is a human of that name: choose another name');
    end if;
end $$;
comment on function switchboard.create_human(text) is
'Adds a human. p_name: 1 to 100 characters, unique. Errors: invalid_argument, conflict. Writes humans.';

create or replace function switchboard.list_humans()
returns table (id uuid, name text, endpoints bigint, created_at timestamptz)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select h.id, h.name, (select count(*) from endpoints e where e.human_id = h.id), h.created_at from humans h order by h.name
$$;
comment on function switchboard.list_humans() is 'All humans by name, with how many endpoints each owns. Reads humans, endpoints.';

create or replace function switchboard.mint_credential(p_endpoint_id uuid) returns text
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    -- 32 bytes, 244 of their bits random: two uuids have six fixed bits each
    v_secret text := 'sbk_' || rtrim(translate(encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'base64'), '+/', '-_'), '=');
begin
    insert into credentials (endpoint_id, digest, created_at)
    values (p_endpoint_id, sha256(convert_to(v_secret, 'UTF8')), clock());
    return v_secret;
end $$;
comment on function switchboard.mint_credential(uuid) is 'Makes a credential for the endpoint, stores its SHA-256 and returns it: the only time it is seen. Writes credentials.';

create or replace function switchboard.check_grant(p_queues text[], p_verbs text[], p_source_types text[]) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_queue text;
begin
    if coalesce(cardinality(p_queues), 0) not between 1 and 32 then
        perform refuse_argument('queues', 'must name 1 to 32 queues');
    end if;
    foreach v_queue in array p_queues loop
        if v_queue = 'quarantine' then
            perform refuse_argument('queues', 'must not name quarantine: it is reserved');
        end if;
        perform check_queue(v_queue, array[v_queue]);
    end loop;
    if exists (select from unnest(p_verbs) v where v is null or v not in (select t.name from tools() t)) then
        perform refuse_argument('verbs', 'names a verb that does not exist: select name from switchboard.tools() lists them');
    elsif exists (select from unnest(p_source_types) s where s is null or s not in (select t.source_type from source_types() t)) then
        perform refuse_argument('webhook_source_types', 'names a source type that does not exist');
    end if;
end $$;
comment on function switchboard.check_grant(text[], text[], text[]) is 'Refuses a grant with malformed or too many queues, unknown verbs or unknown source types.';

create or replace function switchboard.vend_endpoint(
    p_human_id uuid, p_slug text, p_queues text[], p_verbs text[] default null, p_webhook_max integer default 1,
    p_webhook_source_types text[] default null, p_expires_at timestamptz default null)
returns table (endpoint_id uuid, slug text, credential text)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_id    uuid;
    v_now   timestamptz := clock();
    v_types text[] := coalesce(p_webhook_source_types, array(select t.source_type from source_types() t where t.source_type <> 'open'));
    v_verbs text[] := coalesce(p_verbs, default_verbs());
begin
    if p_slug is null or p_slug !~ '^[a-z0-9][a-z0-9-]{0,62}$' then
        perform refuse_argument('slug', 'must be 1 to 63 of a-z, 0-9 and hyphen, and begin with a letter or digit');
    elsif p_webhook_max is null or p_webhook_max not between 0 and 1000 then
        perform refuse_argument('webhook_max', 'must be 0 to 1000');
    elsif p_expires_at <= v_now or not isfinite(p_expires_at) then
        perform refuse_argument('expires_at', 'must be a time to come');
    end if;
    perform check_grant(p_queues, v_verbs, v_types);
    if not exists (select from humans h where h.id = p_human_id) then
        perform refuse('not_found', 'there is no such human: add one with create_human');
    end if;
    insert into endpoints as e (human_id, slug, queues, verbs, webhook_max, webhook_source_types, expires_at, created_at, updated_at)
    values (p_human_id, p_slug, array(select distinct q from unnest(p_queues) q order by q),
            array(select distinct v from unnest(v_verbs) v), p_webhook_max, v_types, p_expires_at, v_now, v_now)
    on conflict on constraint endpoints_slug_key do nothing returning e.id into v_id;
    if v_id is null then
        perform refuse('conflict', 'that slug is taken, perhaps by a revoked endpoint: choose another');
    end if;
    insert into admission_changes (endpoint_id) values (v_id);
    insert into queue_marks (endpoint_id, queue) select v_id, q from (select distinct unnest(p_queues)) s (q);
    return query select v_id, p_slug, mint_credential(v_id);
end $$;
comment on function switchboard.vend_endpoint(uuid, text, text[], text[], integer, text[], timestamptz) is
'Vends an endpoint to the human p_human_id. p_slug: its name in URLs, unique for ever; p_queues: 1 to 32 queues; p_verbs: the whole grant, NULL: default_verbs(); p_webhook_max: how many receivers; p_webhook_source_types: NULL: all but open; p_expires_at: NULL: never. Returns the credential, shown this once. Errors: invalid_argument, not_found, conflict. Writes endpoints, credentials, queue_marks, admission_changes.';

create or replace function switchboard.find_endpoint(p_slug_or_id text) returns uuid
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select e.id from endpoints e where e.slug = p_slug_or_id or e.id = as_uuid(p_slug_or_id)
    order by e.slug = p_slug_or_id desc limit 1
$$;
comment on function switchboard.find_endpoint(text) is 'The endpoint with this slug or id; NULL: none. Reads endpoints.';

create or replace function switchboard.list_endpoints(p_human_id uuid default null)
returns table (endpoint_id uuid, slug text, human text, queues text[], verbs text[], webhook_max integer, webhook_source_types text[],
               default_lease_seconds integer, active boolean, expires_at timestamptz, revoked_at timestamptz, created_at timestamptz)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select e.id, e.slug, h.name, e.queues, e.verbs, e.webhook_max, e.webhook_source_types, e.default_lease_seconds,
           is_active(e.revoked_at, e.expires_at, clock()), e.expires_at, e.revoked_at, e.created_at
    from endpoints e join humans h on h.id = e.human_id
    where p_human_id is null or e.human_id = p_human_id
    order by e.slug
$$;
comment on function switchboard.list_endpoints(uuid) is 'The endpoints of a human, by slug; NULL: of all. Reads endpoints, humans.';

create or replace function switchboard.own_endpoint(p_endpoint_id text, p_verb text default null, p_revoked_too boolean default false) returns switchboard.endpoints
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_row endpoints;
begin
    select * into v_row from endpoints e where e.id = scope(p_endpoint_id, p_verb) for no key update;
    if not found then
        perform refuse('not_found', 'there is no such endpoint: list_endpoints shows them');
    elsif v_row.revoked_at is not null and not p_revoked_too then
        perform refuse('conflict', 'the endpoint is revoked, for good: vend another one');
    end if;
    return v_row;
end $$;
comment on function switchboard.own_endpoint(text, text, boolean) is 'Locks and returns an endpoint in the caller''s scope that is not revoked (p_revoked_too: or is: ending what it owns must stay possible); else not_found or conflict. p_verb: what a bound login must be granted.';

create or replace function switchboard.rotate_credential(p_endpoint_id text, p_grace_seconds integer default 0) returns text
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := own_endpoint(p_endpoint_id);
    v_now      timestamptz := clock();
begin
    if coalesce(p_grace_seconds, 0) not between 0 and 604800 then
        perform refuse_argument('grace_seconds', 'must be 0 to 604800');
    end if;
    delete from credentials c where c.endpoint_id = v_endpoint.id and (coalesce(p_grace_seconds, 0) = 0 or c.expires_at <= v_now);
    update credentials c set expires_at = least(c.expires_at, v_now + make_interval(secs => p_grace_seconds)) where c.endpoint_id = v_endpoint.id;
    perform pg_notify('switchboard_control', v_endpoint.id::text);
    return mint_credential(v_endpoint.id);
end $$;
comment on function switchboard.rotate_credential(text, integer) is
'A new credential for the endpoint, returned this once; the old ones end at once or after p_grace_seconds (0..604800). Errors: not_found, conflict, invalid_argument. Writes credentials; notifies switchboard_control.';

create or replace function switchboard.set_grant(
    p_endpoint_id text, p_queues text[] default null, p_verbs text[] default null, p_webhook_max integer default null,
    p_webhook_source_types text[] default null)
returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := own_endpoint(p_endpoint_id);
begin
    if p_webhook_max not between 0 and 1000 then
        perform refuse_argument('webhook_max', 'must be 0 to 1000');
    end if;
    perform check_grant(coalesce(p_queues, v_endpoint.queues), coalesce(p_verbs, v_endpoint.verbs),
                        coalesce(p_webhook_source_types, v_endpoint.webhook_source_types));
    update endpoints e
    set queues = case when p_queues is null then e.queues else array(select distinct q from unnest(p_queues) q order by q) end,
        verbs = coalesce(p_verbs, e.verbs), webhook_max = coalesce(p_webhook_max, e.webhook_max),
        webhook_source_types = coalesce(p_webhook_source_types, e.webhook_source_types), updated_at = clock()
    where e.id = v_endpoint.id;
    insert into queue_marks (endpoint_id, queue) select distinct v_endpoint.id, q from unnest(p_queues) q on conflict do nothing;
    perform pg_notify('switchboard_control', v_endpoint.id::text);
end $$;
comment on function switchboard.set_grant(text, text[], text[], integer, text[]) is
'Changes what the endpoint may do; NULL leaves a part as it is, a list replaces it whole. Arguments as vend_endpoint. Todos in a queue that is taken away stay, claimed by nobody until it is granted again. Errors: not_found, conflict (revoked), invalid_argument. Writes endpoints, queue_marks; notifies switchboard_control.';

create or replace function switchboard.set_default_lease(p_endpoint_id text, p_lease_ttl_seconds integer) returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := own_endpoint(p_endpoint_id);
begin
    if p_lease_ttl_seconds not between 60 and 86400 then
        perform refuse_argument('lease_ttl_seconds', 'must be 60 to 86400, or NULL for the default of the installation');
    end if;
    update endpoints e set default_lease_seconds = p_lease_ttl_seconds, updated_at = clock() where e.id = v_endpoint.id;
    perform pg_notify('switchboard_control', v_endpoint.id::text);
end $$;
comment on function switchboard.set_default_lease(text, integer) is
'Sets the lease of the endpoint''s claims that name none: 60 to 86400 seconds, NULL: the default of the installation. Errors: not_found, conflict, invalid_argument. Writes endpoints.';

create or replace function switchboard.set_retention(p_endpoint_id text, p_days integer default null, p_rows bigint default null) returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := own_endpoint(p_endpoint_id);
begin
    if p_days not between 1 and 36500 then
        perform refuse_argument('days', 'must be 1 to 36500, or NULL for the default of the installation');
    elsif p_rows < 0 then
        perform refuse_argument('rows', 'must be at least 0, or NULL for the default of the installation');
    end if;
    update endpoints e set retention_days = p_days, retention_rows = p_rows, updated_at = clock() where e.id = v_endpoint.id;
end $$;
comment on function switchboard.set_retention(text, integer, bigint) is
'How long terminal todos of the endpoint are kept: p_days and p_rows, the narrower wins; NULL: the default of the installation. Errors: not_found, conflict, invalid_argument. Writes endpoints.';

create or replace function switchboard.live_todos(p_endpoint_id uuid, p_limit integer default null)
returns table (id uuid)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
begin
    return query
        (select t.id from todos t where t.endpoint_id = p_endpoint_id and t.state = 'pending' and t.assignee is null limit p_limit)
        union all
        (select t.id from todos t where t.endpoint_id = p_endpoint_id and t.state = 'pending' and t.assignee is not null limit p_limit)
        union all
        (select t.id from todos t where t.endpoint_id = p_endpoint_id and t.due_at is not null limit p_limit);
end $$;
comment on function switchboard.live_todos(uuid, integer) is
'The todos of an endpoint that are neither done nor dead letters, up to three times p_limit (NULL: all). Reads todos.';

create or replace function switchboard.retire_todos(p_endpoint_id uuid, p_limit integer default null) returns bigint
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_now   timestamptz := clock();
    v_count bigint;
begin
    with live as materialized (
        select t.endpoint_id, t.id, t.state = 'claimed' as held, t.owner, t.claimed_at from todos t
        where t.endpoint_id = p_endpoint_id and t.completed_at is null
          and t.id in (select l.id from live_todos(p_endpoint_id, p_limit) l)
        order by t.id limit p_limit for no key update skip locked  -- whoever holds one cannot veto a revocation: the sweep takes it
    ), retired as (
        update todos t
        set state = 'failed', due_at = null, lease_token = null, completed_at = v_now, updated_at = v_now
        from live where t.endpoint_id = live.endpoint_id and t.id = live.id
        returning t.endpoint_id, t.id, t.claims, t.attempt, t.queue, live.held, live.owner, live.claimed_at
    ), ended as (
        insert into todo_attempts (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state)
        select r.endpoint_id, r.id, r.claims, r.attempt, r.claimed_at, v_now, r.queue, r.owner, 'revoked', 'failed' from retired r where r.held
    )
    select count(*) into v_count from retired;
    return v_count;
end $$;
comment on function switchboard.retire_todos(uuid, integer) is
'Dead-letters up to p_limit (NULL: all) live todos of an endpoint that is no longer active, ending held attempts as revoked; what an open transaction has locked is left for the sweep. Returns how many. Writes todos, todo_attempts.';

create or replace function switchboard.revoke_endpoint(p_endpoint_id text) returns bigint
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := own_endpoint(p_endpoint_id);
begin
    update endpoints e set revoked_at = clock(), updated_at = clock() where e.id = v_endpoint.id;
    delete from credentials c where c.endpoint_id = v_endpoint.id;
    perform pg_notify('switchboard_control', v_endpoint.id::text);
    return retire_todos(v_endpoint.id);
end $$;
comment on function switchboard.revoke_endpoint(text) is
'Revokes the endpoint for good: its credentials end and its live todos dead-letter in this transaction. Returns how many todos. Errors: not_found, conflict (revoked before). Writes endpoints, credentials, todos, todo_attempts; notifies switchboard_control.';

create or replace function switchboard.bind_login(p_endpoint_id text, p_login text) returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint endpoints := own_endpoint(p_endpoint_id);
begin
    if not exists (select from pg_roles r where r.rolname = p_login and r.rolcanlogin and not r.rolsuper
                   and pg_has_role(r.oid, 'switchboard_worker', 'member')) then
        perform refuse_argument('login', 'must be a database login, not a superuser, that is a member of switchboard_worker: grant it first');
    end if;
    insert into endpoint_logins (endpoint_id, login, created_at) values (v_endpoint.id, p_login, clock())
    on conflict (login) do nothing;
    if not found then
        perform refuse('conflict', 'that login is bound already: unbind_login first');
    end if;
end $$;
comment on function switchboard.bind_login(text, text) is
'Binds a database login (a member of switchboard_worker) to the endpoint: from now on it is that endpoint. Errors: not_found, conflict, invalid_argument. Writes endpoint_logins.';

create or replace function switchboard.unbind_login(p_login text) returns void
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
begin
    delete from endpoint_logins l where l.login = p_login;
    if not found then
        perform refuse('not_found', 'that login is bound to no endpoint');
    end if;
end $$;
comment on function switchboard.unbind_login(text) is 'Unbinds a database login: it owns nothing from now on. Errors: not_found. Writes endpoint_logins.';

create or replace function switchboard.identify(
    p_slug text, p_credential_digest bytea,
    out endpoint_id uuid, out credential_id uuid, out human_id uuid, out verbs text[], out lease_seconds integer)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_now timestamptz := clock();
begin
    select e.id, c.id, e.human_id, e.verbs, e.default_lease_seconds into endpoint_id, credential_id, human_id, verbs, lease_seconds
    from credentials c join endpoints e on e.id = c.endpoint_id
    where c.digest = p_credential_digest and e.slug = p_slug and (c.expires_at is null or c.expires_at > v_now)
      and e.revoked_at is null and (e.expires_at is null or e.expires_at > v_now);
end $$;
comment on function switchboard.identify(text, bytea) is
'Whose credential this is; NULLs when it opens nothing. p_credential_digest: SHA-256 of the credential. Reads credentials, endpoints.';

create or replace function switchboard.authenticate(p_slug text, p_credential_digest bytea) returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_who record := identify(p_slug, p_credential_digest);
begin
    if v_who.endpoint_id is null then
        return null;
    end if;
    return jsonb_build_object('endpoint_id', v_who.endpoint_id, 'slug', p_slug, 'credential_id', v_who.credential_id,
                              'human_id', v_who.human_id, 'verbs', v_who.verbs);
end $$;
comment on function switchboard.authenticate(text, bytea) is
'Whose credential this is: endpoint_id, slug, credential_id, human_id, verbs; NULL for an unknown slug, a bad, expired or revoked credential and one of another slug alike. p_credential_digest: SHA-256 of the credential. Reads credentials, endpoints.';
