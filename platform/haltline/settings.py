"""Django's settings. Values that vary come from `haltline.env`; the rest is decided here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from haltline import env as environment

ENV = environment.load()
BASE_DIR = Path(__file__).resolve().parents[2]

DEBUG = ENV.debug
SECRET_KEY = ENV.secret_key
ALLOWED_HOSTS = ENV.allowed_hosts

INSTALLED_APPS = [
    "daphne",
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rest_framework_api_key",
    "accounts",
    "ledger",
    "gateway",
    "adminapi",
    "haltline",
]

# Django's own middleware serves the pages of the console. The API's paths skip it: it costs
# more than the views behind it, and they neither have sessions nor take forms.
MIDDLEWARE = [
    "haltline.middleware.HostMiddleware",
    "haltline.middleware.SecurityMiddleware",
    "haltline.middleware.SessionMiddleware",
    "haltline.middleware.CommonMiddleware",
    "haltline.middleware.CsrfViewMiddleware",
    "haltline.middleware.AuthenticationMiddleware",
    "haltline.middleware.MessageMiddleware",
    "haltline.middleware.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "haltline.urls"
ASGI_APPLICATION = "haltline.asgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def _database() -> dict[str, Any]:
    database = {**ENV.database, "CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
    if "sqlite" in database["ENGINE"]:
        # IMMEDIATE: a transaction that reads and then writes waits for the lock instead of failing.
        database["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;"
            "PRAGMA temp_store=MEMORY;PRAGMA cache_size=-20000;PRAGMA mmap_size=134217728;"
            "PRAGMA journal_size_limit=67108864",
        }
        # A file, as in production: an in-memory database is not shared between threads.
        database["TEST"] = {"NAME": str(ENV.home.root / "test.sqlite3")}
    return database


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
    )
]
LOGIN_URL = "admin:login"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
STATIC_URL = "static/"
STATIC_ROOT = ENV.home.static
DATA_UPLOAD_MAX_MEMORY_SIZE = 10 * 1024 * 1024

UNFOLD = {
    "SITE_TITLE": "Haltline",
    "SITE_HEADER": "Haltline",
    "SITE_SUBHEADER": "Inference, watched and stopped",
    "SITE_SYMBOL": "front_hand",
    "SHOW_HISTORY": False,
    "SIDEBAR": {"navigation": "adminapi.console.navigation.sidebar"},
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "accounts.authentication.KeyAuthentication",
        "accounts.authentication.StaffSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["accounts.permissions.CanOperate"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["gateway.api.parsers.StrictJSONParser"],
    # There is one format: a parameter of that name must not turn a route into a 404.
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "gateway.api.errors.exception_handler",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Haltline",
    "DESCRIPTION": "Inference that shows every request's life, can stop any, and prove it.",
    "VERSION": "0.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["accounts.permissions.CanRead"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "RequestStateEnum": "adminapi.requests.documents.STATES",
        "ReplicaStateEnum": "ledger.models.Replica.State",
        "LiveStateEnum": "adminapi.aborts.serializers.LIVE_STATES",
    },
}

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        # A socket timeout would end idle subscriptions.
        "CONFIG": {"hosts": [{"address": ENV.broker_url, "socket_timeout": None}]},
    }
}

CELERY_BROKER_URL = ENV.celery_broker_url
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False  # one form of log lines: LOGGING's
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600, "socket_keepalive": True}
CELERY_TASK_DEFAULT_QUEUE = "work"
CELERY_TASK_ROUTES = {"ledger.tasks.*": {"queue": "control"}}
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "requests-sweep": {"task": "ledger.tasks.requests_sweep", "schedule": 5.0},
    "requests-ask": {"task": "ledger.tasks.requests_ask", "schedule": 5.0},
    "responses-sweep": {"task": "gateway.tasks.responses_sweep", "schedule": 5.0},
    "aborts-sweep": {"task": "ledger.tasks.aborts_sweep", "schedule": 5.0},
}
CELERY_BEAT_SCHEDULE_FILENAME = str(ENV.home.root / "celerybeat-schedule")

HALTLINE_MODEL = ENV.model
HALTLINE_BUS_URLS = ENV.bus_urls
HALTLINE_BUS_SECRET = ENV.bus_secret
HALTLINE_BROKER_URL = ENV.broker_url
HALTLINE_ABORT_DEADLINE = ENV.abort_deadline
HALTLINE_PAUSED_WORK = ENV.paused_work
HALTLINE_RETENTION_DAYS = ENV.retention_days

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
