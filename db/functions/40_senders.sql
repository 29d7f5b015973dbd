-- Senders: what Switchboard knows about those who send webhooks.
--
-- A receiver has a source type, and everything follows from it: how far its deliveries can be trusted
-- (never from what a delivery says of itself), where the sender puts the id of a delivery and the name
-- of the event, and what a person should see of it. How a delivery proves where it comes from is the
-- shell's part (py/switchboard/senders.py): it knows the secrets, which are sealed here.
-- Text of a document is the sender's: it is cut, put on one line, and never taken for more than text.

create or replace function switchboard.source_types()
returns table (source_type text, trust_mode text, id_path text[], type_path text[])
language sql immutable set search_path = switchboard, pg_temp
as $$
    values ('github',   'signed', null::text[], null::text[]),
           ('gitea',    'signed', null,         null),
           ('stripe',   'signed', '{id}',       '{type}'),
           ('slack',    'signed', '{event_id}', '{event,type}'),
           ('standard', 'signed', null,         '{type}'),
           ('cairn',    'signed', '{event_id}', '{type}'),
           ('generic',  'token',  null,         '{type}'),
           ('open',     'open',   null,         '{type}')
$$;
comment on function switchboard.source_types() is
'The senders that receivers can be made for, the trust that their deliveries have, and where in the document the id of a delivery and the name of its event stand when they are not in headers. «open» proves nothing and needs a grant that names it.';

create or replace function switchboard.text_at(p_document jsonb, p_path text[]) returns text
language sql immutable set search_path = switchboard, pg_temp
as $$
    select nullif(case when jsonb_typeof(p_document #> p_path) in ('string', 'number') then p_document #>> p_path end, '')
$$;
comment on function switchboard.text_at(jsonb, text[]) is 'The text or number at p_path as text; NULL when there is none, or something else.';

create or replace function switchboard.delivery_key(p_source_type text, p_delivery_id text, p_document jsonb, p_body bytea) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_id text := nullif(p_delivery_id, '');
begin
    if v_id is null then
        v_id := coalesce((select text_at(p_document, s.id_path) from source_types() s where s.source_type = p_source_type), encode(sha256(p_body), 'hex'));
    end if;
    if octet_length(v_id) > 256 then
        v_id := encode(sha256(convert_to(v_id, 'UTF8')), 'hex');
    end if;
    return v_id;
end $$;
comment on function switchboard.delivery_key(text, text, jsonb, bytea) is
'The id that deduplicates a delivery: p_delivery_id (from a header), else the one in the document, else the SHA-256 of the body in hex; of an id of more than 256 bytes its SHA-256.';

create or replace function switchboard.delivery_type(p_source_type text, p_event_type text, p_document jsonb) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_type text := p_event_type;
begin
    if v_type is null then
        select coalesce(text_at(p_document, s.type_path), text_at(p_document, '{type}'), text_at(p_document, '{event}')) into v_type
        from source_types() s where s.source_type = p_source_type and s.type_path is not null;
    end if;
    return nullif(one_line(left(v_type, 1000), 128), '');
end $$;
comment on function switchboard.delivery_type(text, text, jsonb) is
'The name of the event: p_event_type (from a header), else what the document says; one line of at most 128 characters, NULL when there is none.';

create or replace function switchboard.numbers_render_large(p_document jsonb) returns boolean
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_number jsonb;
    v_size   bigint := 0;
begin
    -- not jsonb_path_query(): what that takes grows with the square of the numbers
    for v_number in select n from jsonb_array_elements(jsonb_path_query_array(p_document, 'strict $.** ? (@.type() == "number")')) n loop
        v_size := v_size + length(v_number::text);
        if v_size > 262144 then
            return true;
        end if;
    end loop;
    return false;
end $$;
comment on function switchboard.numbers_render_large(jsonb) is
'Whether the numbers of p_document alone render to more than a payload holds. One by one: of 45 kB of 1e131000 the whole would render to 650 MB.';

create or replace function switchboard.parse_document(p_document text, out document jsonb, out problem text)
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_document is null then
        problem := 'is not JSON text';
        return;
    end if;
    document := p_document::jsonb;
    -- Rendering it costs as much as reading it: only where it could break a limit. A document without an
    -- exponent and without a long run of digits renders to less than twice its length.
    if octet_length(p_document) > 131072 or p_document ~ '(^|[\[:,\s])-?[0-9.]+[eE][-+]?[0-9]+\s*([],}]|$)|[0-9]{250}' or document = 'null' or is_deep(document) then
        problem := case when p_document ~ '[0-9.][eE][-+]?[0-9]' and numbers_render_large(document) then 'must render to at most 262144 bytes: store it elsewhere and send a reference'
                        else json_problem(document) end;
    end if;
exception when others then  -- not JSON, not storable (\u0000, a lone surrogate), deeper than the server's stack
    problem := 'is not JSON that can be stored';
end $$;
comment on function switchboard.parse_document(text) is 'p_document as jsonb, or why it cannot be a payload; both when it is JSON that is too large or too deep for one.';

create or replace function switchboard.forge_title(p_event_type text, p_document jsonb) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_item  jsonb := (select p_document -> k from unnest('{pull_request,issue,discussion,release,workflow_run,check_run,milestone}'::text[]) k
                      where jsonb_typeof(p_document -> k) = 'object' limit 1);
    v_about text  := coalesce(v_item ->> 'title', v_item ->> 'display_title', v_item ->> 'name', split_part(p_document #>> '{head_commit,message}', E'\n', 1));
begin
    return concat_ws(' ',
        coalesce(p_document #>> '{repository,full_name}', p_document #>> '{organization,login}'),
        replace(p_event_type, '_', ' '),
        '#' || coalesce(v_item ->> 'number', p_document ->> 'number', v_item ->> 'run_number'),
        p_document ->> 'action',
        regexp_replace(p_document ->> 'ref', '^refs/(heads|tags)/', '')) || coalesce(': ' || nullif(v_about, ''), '');
end $$;
comment on function switchboard.forge_title(text, jsonb) is 'The title of what a forge sent: repository, event, number, action, branch, then what it is about. Of whatever shape the document is.';

create or replace function switchboard.delivery_title(p_source_type text, p_event_type text, p_delivery_id text, p_document jsonb) returns text
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
declare
    v_title text;
begin
    if p_source_type in ('github', 'gitea') then
        v_title := forge_title(coalesce(p_event_type, p_source_type), p_document);
    else
        v_title := concat_ws(' ', p_source_type, p_event_type, case when p_delivery_id ~ '^[0-9a-f]{64}$' then left(p_delivery_id, 12) else left(p_delivery_id, 100) end)
            || coalesce(': ' || coalesce(text_at(p_document, '{title}'), text_at(p_document, '{subject}'), text_at(p_document, '{summary}'),
                                         text_at(p_document, '{event,text}'), text_at(p_document, '{message}')), '');
    end if;
    return coalesce(nullif(one_line(left(v_title, 2000), 500), ''), p_source_type);
end $$;
comment on function switchboard.delivery_title(text, text, text, jsonb) is
'What a person should see of a delivery at a glance: of a forge repository, event, number, action and title, of others the type and the id; one line of at most 500 characters, text of others.';

create or replace function switchboard.delivery_reply(p_webhook switchboard.endpoint_webhooks, p_event_type text, p_document jsonb) returns jsonb
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_webhook.source_type = 'github' and p_event_type = 'ping' then
        return jsonb_build_object('todos', '[]'::jsonb, 'created', 0, 'verified', true, 'trust_mode', p_webhook.trust_mode);
    elsif p_webhook.source_type = 'slack' and p_document ->> 'type' = 'url_verification' then
        return jsonb_build_object('challenge', p_document ->> 'challenge');
    end if;
    return null;
end $$;
comment on function switchboard.delivery_reply(switchboard.endpoint_webhooks, text, jsonb) is
'The answer to a delivery that only asks whether anybody is there (GitHub''s ping, Slack''s url_verification) and is no work; NULL for all others.';
